"""What one Tune trial does, in its own process: run the trial, keep its result in the store, report at rungs.

The result is in the sweep's store before Tune hears of it. A process that is killed goes on from the trial's last
checkpoint when Tune starts it again; that is counted, and never taken for divergence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from stormsail.platform.config.dump import parse_dump
from stormsail.platform.exact_json import dumps
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.tuning.limits import SLACK_S, OverTimeError, process_ends_after
from stormsail.tuning.objective import Measured
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.space import Trial

Tell = Callable[[dict[str, object]], None]


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a trial's process needs.

    Attributes:
        trial: The trial.
        config: Its run, as `dump_config` writes it.
        store: The sweep's store.
        kind: `bare` or `supervised`.
        rungs: Progress at which to report, in hundredths.
        checkpoint_steps: Steps between two kept states.
        time_limit_s: Seconds of computing that it may take.
        gpu: Whether a bare trial computes on the GPU that it was given.
        home: `STORMSAIL_HOME` of the driver.
        import_paths: Where the user's own modules are looked for.
    """

    trial: Trial
    config: str
    store: StoreAddress
    kind: str
    rungs: tuple[int, ...]
    checkpoint_steps: int
    time_limit_s: float
    gpu: bool
    home: str
    import_paths: tuple[str, ...]


class StoredState:
    """Keeps a trial's state in the sweep's store.

    Args:
        records: The sweep's records.
        trial_id: The trial.
    """

    def __init__(self, records: SweepRecords, trial_id: str) -> None:
        self._records = records
        self._id = trial_id

    def load(self) -> bytes | None:
        """The newest state, or None."""
        return self._records.checkpoint(self._id)

    def save(self, body: bytes) -> None:
        """Keep this one instead."""
        self._records.put_checkpoint(self._id, body)


def run_job(job: Job, tell: Tell) -> None:
    """Run a trial to its end, unless its result is there already.

    One over its time limit has no result. It says so in its last report, as `fault`: an error would have it tried again.

    Args:
        job: The trial and where it belongs.
        tell: Reports to the scheduler; may end this call by an exception of its own.
    """
    for path in reversed(job.import_paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    os.environ["STORMSAIL_HOME"] = job.home
    records = SweepRecords(open_store(job.store))
    last: dict[str, object] = {"percent": 100, "score": 0.0}
    if not records.has_trial(job.trial.id):
        try:
            with process_ends_after(job.time_limit_s + SLACK_S, job.trial.id):
                measured = _supervised(job) if job.kind == "supervised" else _bare(job, records, tell)
        except OverTimeError as error:
            tell({**last, "fault": f"{error.what}; {error.todo}"})
            return
        records.put_trial(measured)
        records.drop_checkpoint(job.trial.id)
    tell(last)


def _bare(job: Job, records: SweepRecords, tell: Tell) -> Measured:
    import torch

    from stormsail.tuning.bare_trial import BareTrial, run_bare

    def report(percent: int, score: float, trial: BareTrial) -> None:
        said: dict[str, object] = {"percent": percent, "score": score}
        if score > 0.0:  # if the scheduler ends the trial here, this is its result
            said["measured"] = measured_text(Measured(job.trial, trial.figures(), trial.wall_s, trial.restarts))
        tell(said)

    done = run_bare(
        parse_dump(job.config),
        percentile=job.trial.cell.clip_percentile,
        keeper=StoredState(records, job.trial.id),
        checkpoint_steps=job.checkpoint_steps,
        limit_s=job.time_limit_s,
        device=torch.device("cuda" if job.gpu else "cpu"),
        rungs=job.rungs,
        report=report,
    )
    return Measured(job.trial, done.figures(), done.wall_s, done.restarts)


def _supervised(job: Job) -> Measured:
    from stormsail.tuning.supervised_trial import run_supervised

    return run_supervised(parse_dump(job.config), job.trial, limit_s=job.time_limit_s)


def measured_text(measured: Measured) -> str:
    """A result as text, to travel in a report."""
    from dataclasses import asdict

    return dumps(asdict(measured)).decode()
