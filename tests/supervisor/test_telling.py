"""Events in plain words: every kind that is written has its words, and no teller stumbles over what is written."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import telling

ROOT = Path(__file__).resolve().parents[2]
# Told by other events, or of interest to machines only.
WORDLESS = {
    "generation.created",
    "loop.ended",
    "incident.shadowed",
    "checkpoint.alert",
} - telling._TELLERS.keys()


def event(kind: str, /, step: int | None = 7, **data: Any) -> Event:
    return Event(1, 1000.0, kind, 2, step, 1, data)


def written_kinds() -> set[str]:
    """Every kind that any source file notes or lays on the line."""
    call = re.compile(r"(?:\bnote|\btell|\bline|_say)\(\s*\"([a-z]+\.[a-z_]+)\"")
    files = [path for folder in ("workers", "supervisor", "platform") for path in (ROOT / folder).rglob("*.py")]
    return {kind for path in files for kind in call.findall(path.read_text(encoding="utf-8"))}


def test_every_kind_that_is_written_has_its_words() -> None:
    kinds = written_kinds()
    assert {"run.finished", "update.dropped", "tracking.away", "resources.waiting"} <= kinds
    assert kinds - telling._TELLERS.keys() - WORDLESS == set()


def test_everything_in_a_real_journal_can_be_told(past: RunPlace) -> None:
    told = {event.kind: telling.tell(event) for event in Journal.read(past.store())}
    assert told["generation.created"] is None
    assert told["attempt.started"] == "attempt 1: starting 2 workers"
    assert told["fault.detected"] == "fault: spike at step 25: loss z 14.0"
    assert str(told["ladder.decided"]).startswith("decision: tier 1, resume from step 20")
    assert told["recovery.caught_up"] == "recovered: step 25 is new ground"
    assert told["checkpoint.good"] == "checkpoint 1/20 is known good"
    assert told["run.finished"] == f"finished at step 30, digest {'d' * 32}"


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("run.continued", {"changes": ["train.steps: 60 -> 80"]}, "run continued; changed: train.steps: 60 -> 80"),
        ("run.continued", {"changes": []}, "run continued"),
        (
            "world.formed",
            {"world_size": 3, "workers": [{"host": "node-b"}, {"host": "node-a"}, {"host": "node-b"}]},
            "world of 3 formed, generation 2, on node-b (2), node-a",
        ),
        (
            "world.formed",
            {"world_size": 34, "workers": [{"host": f"n{number}"} for number in range(34)]},
            f"world of 34 formed, generation 2, on {', '.join(f'n{number}' for number in range(32))} and 2 more hosts",
        ),
        (
            "evaluation.finished",
            {"loss": None, "samples": 256, "tokens": 0, "took_s": 3.14, "lowest": False, "unsaved": ""},
            "evaluated at step 7: no loss, as every token is masked out, over 256 samples in 3.1 s",
        ),
        (
            "evaluation.finished",
            {"loss": 1.842, "samples": 256, "tokens": 9, "took_s": 3.14, "lowest": True, "unsaved": ""},
            "evaluated at step 7: loss 1.8420 over 256 samples in 3.1 s, the lowest so far",
        ),
        (
            "evaluation.finished",
            {
                "loss": None,
                "samples": 256,
                "tokens": 9,
                "took_s": 3.14,
                "lowest": False,
                "unsaved": "the buffer norm.mean",
            },
            "evaluated at step 7: no finite loss over 256 samples in 3.1 s; no checkpoint holds the buffer norm.mean",
        ),
        (
            "fault.detected",
            {"kind": "process", "rank": 1, "error": "killed"},
            "fault: process on rank 1 at step 7: killed",
        ),
        ("fault.detected", {"kind": "hang", "rank": -1, "error": ""}, "fault: hang at step 7: no details"),
        (
            "fault.detected",
            {"kind": "nonfinite", "error": "NaN", "evidence": {"what": "state", "samples": [56, 63]}},
            "fault: nonfinite state at step 7, samples 56 to 63 of the data order: NaN",
        ),
        (
            "spike.watch",
            {"reason": "loss z 7", "samples": [56, 63]},
            "watch: loss z 7 (step 7, samples 56 to 63 of the data order)",
        ),
        (
            "state.restored",
            {"ref_generation": None, "precision": "fp32"},
            "started again from the initial state in fp32",
        ),
        (
            "state.restored",
            {
                "ref_generation": 2,
                "ref_step": 7,
                "tokens": 14336,
                "precision": "bf16",
                "took_s": 0.5,
            },
            "restored checkpoint 2/7: step 7, 14,336 tokens seen, bf16, verified in 0.50 s",
        ),
        (
            "update.dropped",
            {"count": 3, "rank": 1, "first_parameter": "head.weight"},
            "update of step 7 dropped: 3 non-finite gradient values, first on rank 1 in head.weight",
        ),
        (
            "update.dropped",
            {"count": 1, "rank": 0, "first_parameter": ""},
            "update of step 7 dropped: 1 non-finite gradient values, first on rank 0 in the loss",
        ),
        ("run.failed", {"error": "ValueError: typo"}, "failed: ValueError: typo"),
        ("run.exhausted", {"reason": "every tier was tried"}, "needs a person: every tier was tried"),
        ("tracking.back", {}, "MLflow is back"),
    ],
)
def test_an_event_is_one_line_with_what_matters(kind: str, data: dict[str, Any], text: str) -> None:
    assert telling.tell(event(kind, **data)) == text


def test_a_different_twin_is_shouted() -> None:
    told = telling.tell(event("drill.twin", identical=False, digest="a", twin_digest="b"))
    assert told is not None
    assert "DIFFERENT" in told


def test_an_unknown_kind_is_passed_over() -> None:
    assert telling.tell(event("something.new")) is None


def test_routine_is_quiet_and_faults_are_not() -> None:
    assert telling.is_quiet(event("checkpoint.committed"))
    assert not telling.is_quiet(event("fault.detected"))


def test_the_clock_is_local_time() -> None:
    assert telling.clock(1000.0) == time.strftime("%H:%M:%S", time.localtime(1000.0))
