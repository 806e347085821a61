"""A run's rows and journal as a trial's figures; the run itself is made by tests/cluster."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stormsail.platform.journal_events import Event
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.reading import ReadRun
from stormsail.supervisor.record import Record
from stormsail.tuning.space import Cell, Trial
from stormsail.tuning.supervised_trial import measure_run

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


def test_a_run_whose_ladder_was_used_up_diverged() -> None:
    assert measure_run(read([row(0, 5.0)], "exhausted"), TRIAL, steps=3).figures.diverged == "the ladder was used up"
    assert "non-finite" in measure_run(read([row(0, math.nan)], "exhausted"), TRIAL, steps=3).figures.diverged


def test_a_run_that_a_fault_ended_is_no_result() -> None:
    from stormsail.platform.errors import InternalError

    with pytest.raises(InternalError, match="ended as failed"):
        measure_run(read([row(0, 5.0)], "failed"), TRIAL, steps=3)
