"""What a sweep keeps in its store."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from stormsail.platform.errors import ConfigError, StorageError
from stormsail.platform.storage.memory import MemoryStore
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import Plan, SweepRecords, sweep_of, trial_key
from stormsail.tuning.space import Cell

Make = Callable[..., Measured]


@pytest.fixture
def records() -> SweepRecords:
    return SweepRecords(MemoryStore())


def test_a_result_is_read_as_it_was_written(records: SweepRecords, make_measured: Make) -> None:
    made = make_measured(final=None, diverged="nan", curve=((0, 5.0), (3, math.pi)))
    assert not records.has_trial(made.trial.id)
    assert records.put_trial(made)
    assert records.trials() == {made.trial.id: made}
    assert records.count() == 1


def test_the_first_result_of_a_trial_stays(records: SweepRecords, make_measured: Make) -> None:
    made = make_measured()
    records.put_trial(made)
    assert not records.put_trial(replace(made, wall_s=99.0))
    assert records.trials()[made.trial.id] == made


def test_the_plan_is_written_once(records: SweepRecords) -> None:
    plan = Plan({"name": "small"}, "{}", "/x/large.yaml", 1.0, ("/x",))
    assert records.plan() is None
    records.put_plan(plan)
    assert records.plan() == plan


def test_a_checkpoint_lasts_until_it_is_dropped(records: SweepRecords) -> None:
    assert records.checkpoint("a") is None
    records.put_checkpoint("a", b"one")
    records.put_checkpoint("a", b"two")
    assert records.checkpoint("a") == b"two"
    records.drop_checkpoint("a")
    assert records.checkpoint("a") is None


def test_proposals_come_back_in_their_order(records: SweepRecords) -> None:
    batches = [[Cell(0.9, "1", 0.0)], [Cell(0.95, "off", 0.05), Cell(0.98, "p90", 0.01)]]
    for number, cells in enumerate(batches):
        records.put_proposed(number, cells)
    assert records.proposed() == batches


def test_a_damaged_record_is_named(records: SweepRecords) -> None:
    records.store.put(trial_key("a"), b"{}")
    with pytest.raises(StorageError, match=r"trials/a\.json"):
        records.trials()


def test_a_plan_of_another_version_says_so() -> None:
    with pytest.raises(ConfigError, match="another version"):
        sweep_of(Plan({"name": "small", "search": {"method": "sobol"}}, "{}", "/x/large.yaml", 1.0), "here")
