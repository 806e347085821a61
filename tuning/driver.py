"""Runs the trials of one batch with Ray Tune: a `Tuner` over a function, and nothing of its bookkeeping kept.

- A trial's result is written to the sweep's store by the trial itself; after a killed driver the next one leaves out
  what has a record, and running trials go on from their checkpoints. `Tuner.restore` is not used: it would bring back
  the old function, the old batch and the old concurrency with it.
- Processes are reused from trial to trial, since starting one costs more than a small trial.
- The only early stop is successive halving on the *divergence score*, which is 0 for every healthy trial, so that
  slowness cannot end anything; and not before three warm-ups or 40 % of a trial.
- The function's name holds the sweep's and the driver's, so that two sweeps on one cluster never meet.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from stormsail.platform import exact_json
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import InternalError
from stormsail.tuning.capacity import Resources
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.room import Room, held_per_trial
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.stopping import REDUCTION, WHOLE
from stormsail.tuning.trainable import Job

_MEASURED = TypeAdapter(Measured)
_WAITER_BYTES = 64 << 20
# Read by Ray Tune when it is imported or starts; none is about results.
_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files for every trial
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends us at once; the records are safe
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # its own state is never read back
    "TUNE_WARN_THRESHOLD_S": "30",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Trials to run together.

    Attributes:
        jobs: What to run.
        grace: Progress before which nothing is ended early, in hundredths.
    """

    jobs: tuple[Job, ...]
    grace: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How a batch ended.

    Attributes:
        errors: Why trials have no result, by id: the last line of the error of one that died more often than it may, or
            that it was over its time limit.
    """

    errors: Mapping[str, str]


def run_batch(
    batch: Batch,
    sweep: SweepConfig,
    target: RunConfig,
    *,
    records: SweepRecords,
    folder: Path,
    label: str,
    noted: Callable[[str], None],
) -> Finished:
    """Run trials to their end. The process must be connected to Ray.

    Args:
        batch: What to run.
        sweep: The sweep.
        target: The run that it is for.
        records: Where results are.
        folder: For Tune's own files; on several nodes one that they share.
        label: Names the sweep and this driver, on the whole cluster.
        noted: Called with a trial's id when it has a result.
    """
    os.environ.update(_TUNE_ENVIRONMENT)
    from stormsail.supervisor.nodes import wants_gpu

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what a trial died of, we say ourselves
    per_trial = held_per_trial(sweep, target, run_takes_gpu=wants_gpu(target))
    errors: dict[str, str] = {}
    left = list(batch.jobs)
    while left:
        room = Room(sweep, per_trial, len(left))
        ended = Ends()
        _tune(
            left, batch.grace, sweep, per_trial, room, ended=ended,
            records=records, folder=folder, label=label, noted=noted,
        )  # fmt: skip
        errors |= ended.errors
        left = still_left(left, ended)
    return Finished(errors)


@dataclass(slots=True)
class Ends:
    """The trials that have ended in one round, as Tune tells of each. Its results name none that never reported.

    Attributes:
        ids: All of them.
        errors: Why they have no result, for those without.
    """

    ids: set[str] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)

    def note(self, trial_id: str, error: BaseException | None, last: Mapping[str, Any]) -> None:
        """A trial has ended: with an error, with its last report, or with neither."""
        self.ids.add(trial_id)
        fault = last.get("fault")
        if error is not None or fault:
            self.errors[trial_id] = str(fault) if error is None else _last_line(error)


def still_left(jobs: Sequence[Job], ended: Ends) -> list[Job]:
    """The jobs that a round has not come to, for the next one.

    Raises:
        InternalError: It has come to none, and the next one would not either.
    """
    left = [job for job in jobs if job.trial.id not in ended.ids]
    if len(left) == len(jobs):
        raise InternalError(
            f"Ray Tune came back without having run one of {len(jobs)} trials",
            where=jobs[0].trial.id,
            todo="look for what ended it in the logs of Ray's session; the same command goes on",
        )
    return left


def _tune(
    jobs: Sequence[Job],
    grace: int,
    sweep: SweepConfig,
    per_trial: Resources,
    room: Room,
    *,
    ended: Ends,
    records: SweepRecords,
    folder: Path,
    label: str,
    noted: Callable[[str], None],
) -> None:
    """Run trials, all of them, or some to their end because there is room for more at a time; at least one."""
    from ray import tune
    from ray.tune.search.basic_variant import BasicVariantGenerator

    searcher = BasicVariantGenerator(max_concurrent=room.at_first())
    # A supervised trial only waits: its run's worker takes the CPUs, and would wait for ever if the trial had them.
    # Tune refuses a trial that asks for nothing, so it asks for some memory.
    bare = sweep.trials.kind == "bare"
    own = dict(per_trial) if bare else {"memory": float(_WAITER_BYTES)}
    # A run takes its CPUs some time after its trial began, so what looks free may be promised already.
    watched = room if bare else None
    name = f"{label}-{time.time_ns():x}"
    tuner = tune.Tuner(
        tune.with_resources(_function(jobs, label), tune.PlacementGroupFactory([own])),
        param_space={"trial": tune.grid_search([job.trial.id for job in jobs])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="min",
            scheduler=scheduler_of(sweep, grace),
            search_alg=searcher,
            reuse_actors=True,
            trial_name_creator=_trial_id,
            trial_dirname_creator=_trial_id,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder),
            failure_config=tune.FailureConfig(max_failures=sweep.trials.max_retries),
            callbacks=[keeping(records, noted, searcher, watched, ended=ended, planned=len(jobs))],
            verbose=0,
        ),
    )
    tuner.fit()
    shutil.rmtree(folder / name, ignore_errors=True)  # never read back; what cannot be removed is in nobody's way


def _function(jobs: Sequence[Job], label: str) -> Callable[[dict[str, Any]], None]:
    by_id = {job.trial.id: job for job in jobs}

    def run(config: dict[str, Any]) -> None:
        from ray import tune

        from stormsail.tuning.trainable import run_job
        from stormsail.workers.quiet import quiet_process

        quiet_process()
        run_job(by_id[config["trial"]], lambda said: tune.report(said))  # noqa: PLW0108 - looked up in this process

    run.__name__ = run.__qualname__ = f"trial_{label}"
    return run


def scheduler_of(sweep: SweepConfig, grace: int) -> Any:
    """Successive halving on the divergence score, or a scheduler that ends nothing.

    Args:
        sweep: The sweep.
        grace: Progress before which nothing is ended, in hundredths.
    """
    from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

    if not sweep.stops_early or grace >= WHOLE:
        return FIFOScheduler()
    return AsyncHyperBandScheduler(
        time_attr="percent", max_t=WHOLE + 1, grace_period=grace, reduction_factor=REDUCTION, brackets=1
    )


def keeping(
    records: SweepRecords, noted: Callable[[str], None], searcher: Any, room: Room | None, *, ended: Ends, planned: int
) -> Any:
    """What Tune tells of each trial's end.

    Args:
        records: Where results are.
        noted: Called with a trial's id when it has a result.
        searcher: Begins trials, until it is told that it has finished.
        room: Looked at again at each end, or None.
        ended: Filled in.
        planned: Trials of the round.
    """
    from ray.tune import Callback

    class Keeping(Callback):  # type: ignore[misc]  # Ray comes without types
        """Keeps the result of a trial that the scheduler ended, tells of every end, and begins no more if many more fit."""

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            del iteration, info
            trial_id, last = _trial_id(trial), trial.last_result or {}
            ended.note(trial_id, None, last)
            keep_stopped(records, trial_id, last)
            self._look_again(trial, trials)
            if "fault" not in last:
                noted(trial_id)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            del iteration, info
            error = trial.get_pickled_error() or trial.get_error() or RuntimeError("it died without a word")
            ended.note(_trial_id(trial), error, {})
            self._look_again(trial, trials)

        def _look_again(self, ended: Any, trials: list[Any]) -> None:
            if room is not None:
                # The one that has just ended still holds what its successor takes over.
                holding = sum(one is ended or one.status == "RUNNING" for one in trials)
                # A higher limit here would change little: Tune gives a process that is free to the trial that waits for a
                # new one, and calls the new one off.
                if room.grown(holding=holding, left=planned - len(trials)):
                    searcher.set_finished()

    return Keeping()


def keep_stopped(records: SweepRecords, trial_id: str, last: Mapping[str, Any]) -> None:
    """Keep what a trial reported last, if it was ended before it could write its own result."""
    text = last.get("measured")
    if text is None or records.has_trial(trial_id):
        return
    records.put_trial(_MEASURED.validate_python(exact_json.loads(text)))
    records.drop_checkpoint(trial_id)


def _trial_id(trial: Any) -> str:
    return str(trial.config["trial"])


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
