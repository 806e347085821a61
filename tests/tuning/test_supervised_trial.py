"""A run's rows and journal as a trial's figures; the run itself is made by tests/cluster."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ClusterError, InternalError
from stormsail.platform.journal_events import Event
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import places
from stormsail.supervisor.launch import LaunchOptions
from stormsail.supervisor.reading import ReadRun
from stormsail.supervisor.record import Record
from stormsail.tuning import supervised_trial
from stormsail.tuning.space import Cell, Trial
from stormsail.tuning.supervised_trial import measure_run, run_supervised

TRIAL = Trial("w32", Cell(0.95, "1", 0.0), 0.01, 1)


def row(step: int, loss: float, **changes: Any) -> dict[str, Any]:
    base = {"grad_norm": 2.0, "clipped_norm": 1.0, "outcome": "applied", "flagged": False, "step_s": 0.5}
    return {"step": step, "loss": loss, **base, **changes}


def read(rows: list[dict[str, Any]], outcome: str, events: list[Event] | None = None) -> ReadRun:
    place = RunPlace("t", 1, StoreAddress("file:///nowhere"))
    return ReadRun(place, events or [], rows, Record(outcome=outcome))


def test_a_finished_run_is_measured_by_its_last_row_of_each_step() -> None:
    rows = [row(0, 5.0), row(1, 99.0), row(1, 4.0), row(2, 3.0, clipped_norm=2.0)]
    measured = measure_run(read(rows, "finished"), TRIAL, steps=3)
    assert [loss for _, loss in measured.figures.curve] == [5.0, 4.0, 3.0]
    assert measured.figures.clip_rate == pytest.approx(2 / 3)
    assert measured.wall_s == 2.0
    assert not measured.figures.diverged


def test_updates_and_logits_are_those_of_the_sampled_rows() -> None:
    seen = [{}, {"update.rms": 0.2, "attention.max_logit": 7.0}, {"update.rms": 0.4, "attention.max_logit": 9.0}]
    rows = [row(step, 3.0, values=values) for step, values in enumerate(seen)]
    figures = measure_run(read(rows, "finished"), TRIAL, steps=3).figures
    assert figures.max_logit == 9.0
    assert figures.update_rms_p99 == pytest.approx(0.398)
    unseen = measure_run(read([row(0, 3.0)], "finished"), TRIAL, steps=1).figures
    assert (unseen.max_logit, unseen.update_rms_p99) == (None, None)


def journal(*kinds: str) -> list[Event]:
    """Faults of these kinds, the last of which the ladder has no answer to."""
    faults = [Event(number, 1.0, "fault.detected", 1, data={"kind": kind}) for number, kind in enumerate(kinds, 1)]
    return [*faults, Event(len(kinds) + 1, 1.0, "run.exhausted", 1, data={"reason": "every repair was tried"})]


def test_a_run_whose_numbers_used_the_ladder_up_diverged() -> None:
    events = journal("process", "divergence")
    assert measure_run(read([row(0, 5.0)], "exhausted", events), TRIAL, steps=3).figures.diverged == (
        "the ladder was used up"
    )
    lost = measure_run(read([row(0, math.nan, outcome="dropped")], "exhausted", events), TRIAL, steps=3)
    assert "non-finite" in lost.figures.diverged


@pytest.mark.parametrize("events", [journal("spike", "process"), journal("hang"), journal()])
def test_a_ladder_that_a_fault_of_machines_used_up_is_no_divergence(events: list[Event]) -> None:
    with pytest.raises(InternalError, match="a fault used the ladder up"):
        measure_run(read([row(0, 5.0)], "exhausted", events), TRIAL, steps=3)


def test_a_later_fault_says_nothing_about_what_used_the_ladder_up() -> None:
    later = Event(9, 2.0, "fault.detected", 1, data={"kind": "process"})
    assert measure_run(read([row(0, 5.0)], "exhausted", [*journal("spike"), later]), TRIAL, steps=3).figures.diverged


@pytest.mark.parametrize(
    ("run", "fresh"),
    [
        (read([row(0, 5.0)], "exhausted", journal("process")), True),  # gone on with, it would have no repair left
        (read([row(0, 5.0)], "finished"), True),
        (read([row(0, 5.0)], "failed"), False),
        (read([row(0, 5.0)], "exhausted", journal("spike")), None),
        (read([row(step, 5.0) for step in range(3)], "finished"), None),
    ],
)
def test_what_has_no_result_is_begun_anew_or_gone_on_with(
    bowl: RunConfig, monkeypatch: pytest.MonkeyPatch, run: ReadRun, fresh: bool | None
) -> None:
    config = bowl.model_copy(update={"train": bowl.train.model_copy(update={"steps": 3})})
    started: list[bool] = []

    def launched(_config: RunConfig, options: LaunchOptions, **_: object) -> None:
        started.append(options.fresh)
        raise ClusterError("far enough")

    monkeypatch.setattr(places, "root_address", lambda *_: run.place.address)
    monkeypatch.setattr(supervised_trial, "find_run", lambda *_: run.place)
    monkeypatch.setattr(supervised_trial, "read_run", lambda _: run)
    monkeypatch.setattr(supervised_trial, "launch", launched)
    with contextlib.suppress(ClusterError):
        assert run_supervised(config, TRIAL, limit_s=9.0).figures.steps == len(run.rows)
    assert started == ([] if fresh is None else [fresh])


def test_a_step_that_was_dropped_and_got_over_is_no_divergence() -> None:
    rows = [row(step, 5.0 - step / 10) for step in range(10)]
    rows[4] = row(4, math.nan, outcome="dropped", grad_norm=math.inf)
    figures = measure_run(read(rows, "finished"), TRIAL, steps=10).figures
    assert not figures.diverged
    assert dict(figures.curve)[4] == dict(figures.curve)[3]
    rows[4] = row(4, math.nan)  # an update with it was made
    assert measure_run(read(rows, "finished"), TRIAL, steps=10).figures.diverged


def test_a_finished_run_with_lost_rows_is_no_result() -> None:
    with pytest.raises(InternalError, match="3 steps only 2 have a row"):
        measure_run(read([row(0, 5.0), row(0, 5.0), row(2, 3.0)], "finished"), TRIAL, steps=3)


def test_a_run_that_a_fault_ended_is_no_result() -> None:
    with pytest.raises(InternalError, match="ended as failed"):
        measure_run(read([row(0, 5.0)], "failed"), TRIAL, steps=3)
