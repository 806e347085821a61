"""What the driver keeps of a trial that the scheduler ended; Tune itself is run by tests/cluster."""

from __future__ import annotations

from collections.abc import Callable

from stormsail.platform.config.model import RunConfig
from stormsail.platform.storage.memory import MemoryStore
from stormsail.tuning.driver import cpus_per_trial, keep_stopped
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.trainable import measured_text

Make = Callable[..., Measured]


def test_the_last_report_of_a_trial_that_was_ended_is_its_result(make_measured: Make) -> None:
    records, one = SweepRecords(MemoryStore()), make_measured(diverged="it rose", final=None)
    records.put_checkpoint(one.trial.id, b"state")
    keep_stopped(records, one.trial.id, {"measured": measured_text(one)})
    assert records.trials() == {one.trial.id: one}
    assert records.checkpoint(one.trial.id) is None


def test_a_result_that_is_there_and_a_report_without_one_are_left_alone(make_measured: Make) -> None:
    records, one = SweepRecords(MemoryStore()), make_measured()
    keep_stopped(records, one.trial.id, {"percent": 40})
    assert records.trials() == {}
    records.put_trial(one)
    keep_stopped(records, one.trial.id, {"measured": measured_text(make_measured(diverged="it rose"))})
    assert records.trials() == {one.trial.id: one}


def test_a_trial_holds_its_own_cpus_or_its_workers(target: RunConfig, make_sweep: Callable[..., SweepConfig]) -> None:
    wide = target.model_copy(update={"cluster": target.cluster.model_copy(update={"cpus_per_worker": 4.0})})
    assert cpus_per_trial(make_sweep(trials={"cpus": 2.0}), wide) == 2.0
    assert cpus_per_trial(make_sweep(trials={"kind": "supervised"}), wide) == 4.0
