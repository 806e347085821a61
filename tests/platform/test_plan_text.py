"""The plan's page: every part has its line, and figures carry units."""

from __future__ import annotations

import pytest

from stormsail.platform.config.model import RunConfig
from stormsail.platform.plan import plan_run
from stormsail.platform.plan_text import duration_text, plan_text, size_text


def page(**sections: object) -> str:
    config = RunConfig.model_validate({"name": "x", "train": {"steps": 1000}, **sections})
    return plan_text(plan_run(config, bandwidth_mb_s=100.0))


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1.5e9, "1.5 GB"), (2e15, "2.0 PB"), (3e18, "3000.0 PB")],
)
def test_sizes_have_the_fitting_unit(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.31, "0.3 s"), (90, "1.5 min"), (5400, "1.5 h")])
def test_durations_have_the_fitting_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_built_in_run_has_every_part() -> None:
    text = page()
    for part in ("parameters", "tokens", "micro-batches", "memory", "checkpoint", "upload", "Ladder", "Not checked"):
        assert part in text
    assert "Look again" not in text


def test_host_memory_is_told_by_what_it_holds() -> None:
    assert "38.6 MB per rank for 3 snapshots, 8.6 MB for the last keyframe\n" in page(cluster={"workers": 3})
    assert "for 2 snapshots\n" in page(checkpoint={"ring": 9, "vault_gib": 0, "deltas": False})


def test_evaluations_are_told_with_what_each_takes() -> None:
    assert "evaluation" not in page()
    told = page(eval={"every_steps": 300}, cluster={"workers": 3})
    assert "  evaluation      4 in the run, of up to 256 held-out samples: 11 forward passes of each worker\n" in told
    assert "  evaluation      4 in the run, of all held-out samples\n" in page(
        eval={"every_steps": 300, "samples": None}
    )


def test_notes_come_before_what_was_not_checked() -> None:
    text = page(train={"steps": 1000, "global_batch": 17})
    assert text.index("Look again") < text.index("Not checked")


def test_without_parameters_no_size_is_shown() -> None:
    text = page(model={"factory": "m:f"})
    assert "parameters      unknown" in text
    assert "memory per rank" not in text
