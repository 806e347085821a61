"""One sweep from its first trial to its answer, or from where it was killed: plan, lease, batches, report."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.console import emit
from stormsail.platform.errors import ConfigError, FencedError, StorageError, TryLaterError
from stormsail.platform.home import Home
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.runs import RunPlace, begin_incarnation, find_run
from stormsail.supervisor import places
from stormsail.tuning.answer import Answer, build_answer
from stormsail.tuning.capacity import eta_s
from stormsail.tuning.driver import Batch, run_batch
from stormsail.tuning.proxy import own_of_target, refuse_equal_warmups, trial_config
from stormsail.tuning.records import Plan, SweepRecords, sweep_of
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial, control_trials, trials_of
from stormsail.tuning.stopping import grace_percent, rungs
from stormsail.tuning.suggest import next_cells
from stormsail.tuning.trainable import Job

Notify = Callable[[str], None]

FOLDER = "sweeps"
"""All sweeps of a store lie below this."""

_RENEW_S = 20.0
_PROGRESS_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A sweep that came to its end.

    Attributes:
        place: Where it lives.
        answer: What it says.
        errors: Why trials are missing, by id.
    """

    place: RunPlace
    answer: Answer
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What `stormsail sweep` was asked for.

    Attributes:
        sweep: The sweep.
        target: The run that it is for.
        target_file: The target's YAML.
        folder: Of the sweep's YAML.
        fresh: Begin anew, whatever is there.
        take_over: Take the lease of a driver that has not been heard of since it expired, though it may live.
    """

    sweep: SweepConfig
    target: RunConfig
    target_file: Path
    folder: Path
    fresh: bool = False
    take_over: bool = False


def run_sweep(request: Request, *, home: Home, notify: Notify, out: TextIO) -> Ended:
    """Run a sweep, or go on with it, to its end.

    Raises:
        ConfigError: It cannot be trained like this, or it goes on with another plan than it was started with.
        RunExistsError: Another process runs it, or may: its machine is gone, and `take_over` was not asked for.
        ClusterError: The cluster cannot be joined, or not one trial fits on it.
    """
    from stormsail.supervisor.cluster import connect

    sweep, target = request.sweep, request.target
    refuse_equal_warmups(sweep)
    for trial in (*control_trials(sweep), *trials_of(sweep, [trial.cell for trial in control_trials(sweep)[:1]])):
        trial_config(target, sweep, trial)  # what cannot be scaled is said before anything starts
    place = _place(request, home, notify)
    records = SweepRecords(place.store())
    plan = _plan(records, request)
    with _owned(place, notify, take_over=request.take_over):
        connect(_small(target), home, notify)
        places.remember(home, remembered_as(sweep.name), target.storage, None)
        notify(f"sweep {sweep.name}: records in {place.address.url}")
        errors = _run_batches(_Sweeping(sweep, target, place, records, plan, home, out))
    return Ended(place, read_answer(records), errors)


def read_answer(records: SweepRecords) -> Answer:
    """The answer as far as it is known, from the store alone.

    Raises:
        ConfigError: There is no plan.
    """
    plan = records.plan()
    if plan is None:
        raise ConfigError("the sweep has no plan yet", where=records.store.url, todo="start it again")
    sweep, target = sweep_of(plan, records.store.url), parse_dump(plan.target)
    return build_answer(sweep, target, _known_cells(records), records.trials())


@dataclass(frozen=True, slots=True)
class _Sweeping:
    sweep: SweepConfig
    target: RunConfig
    place: RunPlace
    records: SweepRecords
    plan: Plan
    home: Home
    out: TextIO


def _run_batches(at: _Sweeping) -> dict[str, str]:
    """The control first, then batch after batch until the search is over; each cell is kept before it is run."""
    control = control_trials(at.sweep)
    errors = _run_trials(at, control)
    if errors and not any(at.records.has_trial(trial.id) for trial in control):
        raise TryLaterError(
            f"not one control trial could be run: {next(iter(errors.values()))}",
            where=at.sweep.name,
            todo="every trial would end like that; the same command goes on once it is repaired",
        )
    proposed = at.records.proposed()
    number = 0
    while True:
        if number < len(proposed):
            cells = proposed[number]
        else:
            known = [cell for batch in proposed for cell in batch]
            scores = build_answer(at.sweep, at.target, known, at.records.trials()).rows
            cells = next_cells(at.sweep, proposed, scores)
            if not cells:
                return errors
            at.records.put_proposed(number, cells)
            proposed.append(cells)
        errors |= _run_trials(at, trials_of(at.sweep, cells))
        number += 1


def _run_trials(at: _Sweeping, trials: Sequence[Trial]) -> dict[str, str]:
    known = at.records.trials()
    left = [trial for trial in trials if trial.id not in known]
    if not left:
        return {}
    grace = grace_percent(at.sweep)
    progress = _Progress(build_answer(at.sweep, at.target, _known_cells(at.records), known), at.out)
    batch = Batch(tuple(_job(at, trial, rungs(grace)) for trial in left), grace)
    folder = Path(at.target.cluster.shared_path or at.home.path) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    finished = run_batch(
        batch,
        at.sweep,
        at.target,
        records=at.records,
        folder=folder,
        label=f"{at.sweep.name}-{secrets.token_hex(3)}",
        noted=progress.noted,
    )
    return dict(finished.errors)


def _job(at: _Sweeping, trial: Trial, marks: tuple[int, ...]) -> Job:
    return Job(
        trial=trial,
        config=dump_config(trial_config(at.target, at.sweep, trial, incarnation=at.place.incarnation)),
        store=at.place.address,
        kind=at.sweep.trials.kind,
        rungs=marks if at.sweep.stops_early else (),
        checkpoint_steps=at.sweep.trials.checkpoint_steps,
        time_limit_s=at.sweep.trials.time_limit_s,
        gpu=at.sweep.trials.gpus > 0.0,
        home=str(at.home.path),
        import_paths=at.plan.import_paths,
    )


def _known_cells(records: SweepRecords) -> list[Cell]:
    return [cell for batch in records.proposed() for cell in batch]


def _small(target: RunConfig) -> RunConfig:
    """The target with one worker: what the local cluster has to hold at least."""
    return target.model_copy(update={"cluster": target.cluster.model_copy(update={"workers": 1})})


def _place(request: Request, home: Home, notify: Notify) -> RunPlace:
    root = places.root_address(request.target.storage, home, notify).child(FOLDER)
    found = None if request.fresh else find_run(root, request.sweep.name)
    return begin_incarnation(root, request.sweep.name) if found is None else found


def _plan(records: SweepRecords, request: Request) -> Plan:
    """The plan that is there, which must be the one that is asked for, or a new one."""
    asked = Plan(
        sweep=request.sweep.model_dump(mode="json"),
        target=dump_config(request.target),
        target_file=str(request.target_file.resolve()),
        started_s=time.time(),
        import_paths=tuple(dict.fromkeys(str(path) for path in (Path.cwd(), request.folder.resolve()))),
    )
    known = records.plan()
    if known is None:
        records.put_plan(asked)
        return asked
    then, now = (own_of_target(one, request.sweep) for one in (parse_dump(known.target), request.target))
    if not sweep_of(known, records.store.url).measures_like(request.sweep) or dump_config(then) != dump_config(now):
        raise ConfigError(
            f"sweep {request.sweep.name!r} was started with another plan, and its trials would not compare",
            where=records.store.url,
            todo="put the files back as they were, or begin anew: `--fresh` (the old sweep is kept)",
        )
    return known


@contextmanager
def _owned(place: RunPlace, notify: Notify, *, take_over: bool) -> Iterator[None]:
    """Own the sweep for as long as the block runs; the lease of a driver that was killed here is taken over at once."""
    owner = LeaseOwner.here(secrets.token_hex(8))
    lease = RunLease.acquire(place.store(), owner, now=time.time(), run=place.name, take_over=take_over)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(_RENEW_S):
            try:
                lease.renew(time.time())
            except FencedError as error:
                notify(f"this sweep was taken over by another process: {error}")
                os._exit(FencedError.exit_code)  # two drivers would do all trials twice
            except StorageError as error:
                notify(f"the sweep's lease could not be renewed, trying again: {error}")

    thread = threading.Thread(target=renew, name="stormsail-sweep-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_RENEW_S)
        lease.release()


class _Progress:
    """Tells how far the sweep is, now and then.

    Args:
        before: The answer when this session began.
        out: Where to.
    """

    def __init__(self, before: Answer, out: TextIO) -> None:
        self._done, self._total, self._name = before.done, before.total, before.name
        self._here = 0
        self._out = out
        self._started = self._told = time.monotonic()

    def noted(self, trial_id: str) -> None:
        """A trial has its result."""
        del trial_id
        self._here += 1
        now = time.monotonic()
        if now - self._told >= _PROGRESS_S:
            self._told = now
            emit(progress_line(self._name, self._done + self._here, self._total, self._left(now)), stream=self._out)

    def _left(self, now: float) -> float | None:
        return eta_s(done=self._here, total=self._total - self._done, spent_s=now - self._started)


def remembered_as(name: str) -> str:
    """The name under which this machine remembers where a sweep lives; no run's name has a `+`."""
    return f"sweep+{name}"


def progress_line(name: str, done: int, total: int, left_s: float | None) -> str:
    """`sweep NAME: 12 of 120 trials, about 3 min left`."""
    left = "" if not left_s else f", about {max(1, round(left_s / 60))} min left"
    return f"sweep {name}: {done} of {total} trials{left}"
