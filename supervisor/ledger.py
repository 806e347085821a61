"""What the supervisor knows while it runs: the journalled record, the rows so far, and the phase; one lock around all.

Every change goes through here and is journalled before it is known. Other modules of the supervisor share one
ledger and hold no state of the run of their own.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stormsail.platform.errors import StorageUnavailableError, StormsailError
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import CheckpointRef, StepRow
from stormsail.platform.series import SeriesWriter, read_series
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.checkpoint_view import live_candidates
from stormsail.supervisor.ladder import CandidateCheckpoint, LadderState
from stormsail.supervisor.phases import START, RunEvent, RunPhase, advance
from stormsail.supervisor.record import Record, apply, fold
from stormsail.supervisor.replay_verdict import ReplayVerdict, compare
from stormsail.supervisor.watch.waiting import Wait

_RECENT_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a follower gets at each look.

    Attributes:
        events: Events newer than the follower's cursor.
        rows: The newest rows that the follower has not seen.
        cursor: The follower's next (event number, row number).
        step: Next step to run.
        phase: What the run does.
        over: Whether the supervisor has nothing more to do.
        error: Why the supervisor itself gave up, or None.
        waiting: What holds up the first step, or an evaluation, or None.
    """

    events: tuple[Event, ...]
    rows: tuple[StepRow, ...]
    cursor: tuple[int, int]
    step: int
    phase: RunPhase
    over: bool
    error: StormsailError | None
    waiting: Wait | None = None


class Ledger:
    """The run as its supervisor knows it; every method may be called from any thread.

    Args:
        store: The run's store.
        folder: The run's local folder, for the journal's local file.
        writer: Names this claim on the run in the journal.
        deadline_s: How long a durable note waits for a store that is down.

    Raises:
        FencedError: Somebody else writes this run's journal.
        StorageError: The store failed.
    """

    def __init__(self, store: ObjectStore, folder: Path, *, writer: str, deadline_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.error: StormsailError | None = None
        self.stop_reason = ""
        self.loading: CheckpointRef | None = None
        self.last_unhealthy = -1
        self._deadline_s = deadline_s
        self._journal = Journal.open(store, folder / "journal.jsonl", writer=writer, deadline_s=deadline_s)
        self._events: list[Event] = list(self._journal.history)
        self._record = fold(self._events)
        self._phase = START
        self._series = SeriesWriter(store)
        self._rows: deque[tuple[int, StepRow]] = deque(maxlen=_RECENT_ROWS)
        # A follower's cursor outlives a supervisor: each one numbers its rows beyond all of the ones before.
        self._row_number = len(self._events) << 32
        self._newest_row: dict[int, int] = {}
        self._losses: dict[int, float] = {}
        self._line: dict[int, StepRow] = {}
        self._before_fork: dict[int, StepRow] = {}
        self.highest = -1
        self.damaged_rows: list[str] = []
        self._read_past(store)

    @property
    def is_new(self) -> bool:
        """Whether the run has no past."""
        return not self._events

    @property
    def mended(self) -> tuple[str, ...]:
        """Objects of the journal that were damaged, and were written once more."""
        return self._journal.mended

    @property
    def record(self) -> Record:
        """What follows from the journal."""
        return self._record

    @property
    def phase(self) -> RunPhase:
        """What the run waits for."""
        return self._phase

    def move(self, event: RunEvent) -> None:
        """Let something happen to the phase."""
        with self.lock:
            self._phase = advance(self._phase, event)

    def note(self, kind: str, /, *, step: int | None = None, durable: bool = False, **data: Any) -> Event:
        """Journal an event, then know it.

        Args:
            kind: Dotted words.
            step: Step that it concerns.
            durable: Wait until the store has it, up to the deadline.
            data: What else there is to know.
        """
        with self.lock:
            event = self._journal.append(
                kind,
                time_s=time.time(),
                generation=int(data["generation"]) if kind == "generation.created" else self._record.generation,
                step=step,
                attempt=int(data["attempt"]) if kind == "attempt.started" else self._record.attempt,
                data=data,
            )
            # Known as soon as it is in the file: what is journalled counts, whether the store has it yet or not.
            self._record = apply(self._record, event)
            self._events.append(event)
        if durable and self._journal.flush(self._deadline_s):
            raise StorageUnavailableError(
                f"the store did not take {kind!r} within {self._deadline_s:.0f} s",
                todo="the event is kept on this machine and sent when the run goes on",
            )
        return event

    def set_ladder(self, state: LadderState) -> None:
        """Take over the ladder's counters between two decisions; they need no journal entry."""
        with self.lock:
            self._record = replace(self._record, ladder=state)

    def add_row(self, row: StepRow) -> bool:
        """Take a finished step. Returns False for one that is known already, or of an older generation."""
        with self.lock:
            if row.generation != self._record.generation or row.step <= self._newest_row.get(row.generation, -1):
                return False
            self._newest_row[row.generation] = row.step
            self._row_number += 1
            self._rows.append((self._row_number, row))
            self._series.add([asdict(row)])
            self._remember_loss(row.step, row.loss)
            self._line[row.step] = row
            if row.outcome == "dropped" or row.flagged:
                self.last_unhealthy = row.step
            self._line.pop(row.step - _RECENT_ROWS, None)
            return True

    def is_replayed(self, row: StepRow) -> bool:
        """Whether the row's generation took the step from the gradient log: it was computed by an older one."""
        with self.lock:
            return any(
                row.generation == made.number and row.step < made.fork_step for made in self._record.generations[-1:]
            )

    def add_replayed(self, row: StepRow) -> None:
        """Take a step that was computed before the fork, if its row was lost with the process that computed it."""
        with self.lock:
            if row.step not in self._losses and row.step not in self._line:
                self.add_row(row)

    def fork_at(self, step: int) -> None:
        """A new generation goes on from here: what older ones saw beyond may not come again, and is put aside."""
        with self.lock:
            self._losses = {known: loss for known, loss in self._losses.items() if known < step}
            self.last_unhealthy = min(self.last_unhealthy, step - 1)
            # Two forks in a row, because a checkpoint was damaged, must not lose what the first put aside.
            passed = self._before_fork | self._line
            self._before_fork = {known: row for known, row in passed.items() if known >= step}
            self._line = {known: row for known, row in self._line.items() if known < step}

    def forget_losses(self) -> None:
        """Nothing that was seen so far need come again: the configuration has changed."""
        with self.lock:
            self._losses = {}

    def replay_verdict(self) -> ReplayVerdict:
        """Compare what was computed since the last fork with what was computed for the same steps before it."""
        with self.lock:
            return compare(self._before_fork, {s: row for s, row in self._line.items() if row.precision == "fp32"})

    def losses_between(self, first: int, stop: int) -> tuple[tuple[int, float], ...]:
        """(step, loss) recorded for the steps from `first` up to before `stop`."""
        with self.lock:
            return tuple((step, self._losses[step]) for step in range(first, stop) if step in self._losses)

    def rows_before(self, step: int, count: int) -> list[StepRow]:
        """The last finished steps of the live line before a step, at most so many, oldest first."""
        with self.lock:
            return [self._line[known] for known in range(step - count, step) if known in self._line]

    def candidates(self) -> list[CandidateCheckpoint]:
        """Checkpoints of the live line that may be loaded, oldest first."""
        return live_candidates(self.record)

    @property
    def position(self) -> int:
        """Next step to run, as far as rows have arrived; before the first of a generation, the step it begins with."""
        rows, record = tuple(self._rows), self._record  # one read each: no lock is needed, and none is waited for
        if rows and rows[-1][1].generation == record.generation:
            return rows[-1][1].step + 1
        return record.generations[-1].fork_step if record.generations else 0

    def look(self, cursor: tuple[int, int]) -> Snapshot:
        """What is new since the cursor; never waits, not even while a decision waits for the store."""
        events = tuple(event for event in tuple(self._events) if event.number > cursor[0])
        rows = [(number, row) for number, row in tuple(self._rows) if number > cursor[1]]
        return Snapshot(
            events=events,
            rows=tuple(row for _, row in rows),
            cursor=(events[-1].number if events else cursor[0], rows[-1][0] if rows else cursor[1]),
            step=self.position,
            phase=self._phase,
            over=self.over.is_set(),
            error=self.error,
        )

    def secure(self) -> None:
        """Wait until the store has all events, up to the deadline. Never call it with the lock held.

        Raises:
            FencedError: Another supervisor has taken the run over.
            StorageUnavailableError: The store did not take them in time; they are sent later.
        """
        if self._journal.pending and self._journal.flush(self._deadline_s):
            raise StorageUnavailableError(f"the store did not take the journal within {self._deadline_s:.0f} s")

    def newest_rows(self, count: int) -> tuple[StepRow, ...]:
        """The last finished steps, oldest first."""
        return tuple(row for _, row in tuple(self._rows)[-count:])

    @property
    def problem(self) -> str:
        """Why the store did not take the last event that was tried, or ""."""
        return self._journal.problem

    def flush(self, deadline_s: float) -> int:
        """Send rows and events that wait for the store; returns how many it has not taken."""
        rows = self._series.flush()
        return rows + (self._journal.flush(deadline_s) if self._journal.pending else 0)

    def _read_past(self, store: ObjectStore) -> None:
        """Take up what earlier supervisors saw, fork by fork as they did: what was thrown away need not come again."""
        forks = deque(self._record.generations)
        for row in read_series(store, damaged=lambda error: self.damaged_rows.append(error.where)):
            generation, step, loss = (_number(row.get(name)) for name in ("generation", "step", "loss"))
            if not (math.isfinite(generation) and math.isfinite(step)):
                self.damaged_rows.append(f"a row of {row.get('step')!r}, generation {row.get('generation')!r}")
                continue
            while forks and forks[0].number <= generation:
                self.fork_at(forks.popleft().fork_step)
            self._remember_loss(int(step), loss)
        for made in forks:
            self.fork_at(made.fork_step)

    def _remember_loss(self, step: int, loss: float) -> None:
        self.highest = max(self.highest, step)
        if math.isfinite(loss):
            self._losses[step] = loss
            self._losses.pop(step - _RECENT_ROWS, None)


def parent_of(record: Record, generation: int) -> CheckpointRef | None:
    """The checkpoint that a generation went on from, or None for the initial state (pure)."""
    made = next((item for item in record.generations if item.number == generation), None)
    return CheckpointRef(made.parent, made.fork_step) if made is not None and made.parent is not None else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
