"""What is known of a run: a pure fold over its journal, so that a new supervisor knows what the old one knew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from stormsail.platform.checkpoint.evaluated import Evaluated, evaluated_in
from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import CheckpointRef, LrEvent
from stormsail.supervisor.ladder import LadderState

OUTCOMES = {"run.finished": "finished", "run.stopped": "stopped", "run.exhausted": "exhausted", "run.failed": "failed"}
_NO_EVALUATION = {*OUTCOMES, "evaluation.finished", "fault.detected", "attempt.started"}


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """A committed checkpoint as the journal tells it.

    Attributes:
        ref: Its name.
        digest: Root digest of the state, in hex.
        time_s: When it was committed.
        finite: Whether every number in it is finite; others are never restored automatically.
    """

    ref: CheckpointRef
    digest: str
    time_s: float
    finite: bool


@dataclass(frozen=True, slots=True)
class Evaluating:
    """An evaluation that is under way.

    Attributes:
        step: Global batches consumed by the state.
        since_s: When it began, in seconds since the epoch.
    """

    step: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """The run so far.

    Attributes:
        attempt: Number of the newest attempt (0: none yet).
        generation: Number of the newest generation (0: none yet).
        generations: All of them, oldest first.
        commits: Committed checkpoints, oldest first.
        good: Checkpoints known good.
        corrupt: Checkpoints that failed verification; never chosen again.
        deleted: Checkpoints that retention removed.
        evaluations: What was evaluated and has a finite loss, in order.
        evaluating: What is being evaluated now, or None.
        lr_events: What was decided about the learning rate.
        skip: Sample ranges left out of the data order.
        ladder: The ladder's state.
        fired: How often each drill fault has fired, by index.
        data_digest: Digest of the data that the first world read.
        config: The configuration in force, as dumped JSON ("" before the start).
        outcome: "" while the run is not over, else finished, stopped, exhausted or failed.
        exit_code: Exit code that goes with the outcome.
        claim: Which claim on the run the newest supervisor acts under; one that Ray restarts has the same.
        stop_requested: The reason that a person gave for stopping, under this claim, or "".
        stop_step: Step that the run ends at instead of `train.steps`, or None.
    """

    attempt: int = 0
    generation: int = 0
    generations: tuple[Generation, ...] = ()
    commits: tuple[CommittedCheckpoint, ...] = ()
    good: frozenset[CheckpointRef] = frozenset()
    corrupt: frozenset[CheckpointRef] = frozenset()
    deleted: frozenset[CheckpointRef] = frozenset()
    evaluations: tuple[Evaluated, ...] = ()
    evaluating: Evaluating | None = None
    lr_events: tuple[LrEvent, ...] = ()
    skip: tuple[tuple[int, int], ...] = ()
    ladder: LadderState = field(default_factory=LadderState)
    fired: tuple[tuple[int, int], ...] = ()
    config: str = ""
    data_digest: str = ""
    outcome: str = ""
    exit_code: int = 0
    stop_step: int | None = None
    claim: str = ""
    stop_requested: str = ""


def fold(events: Iterable[Event], record: Record | None = None) -> Record:
    """Apply events in order."""
    known = record or Record()
    for event in events:
        known = apply(known, event)
    return known


def apply(record: Record, event: Event) -> Record:
    """The record after one more event; kinds that change nothing are passed over."""
    if event.kind in _NO_EVALUATION:
        record = replace(record, evaluating=None)
    if event.kind in OUTCOMES:
        return replace(record, outcome=OUTCOMES[event.kind], exit_code=int(_data(event).get("exit_code", 0)))
    handler = _HANDLERS.get(event.kind)
    return handler(record, event) if handler else record


def _data(event: Event) -> dict[str, Any]:
    """The event's data, typed by what its kind promises."""
    return event.data


def _claim(event: Event) -> str:
    return str(_data(event).get("claim", ""))


def _started(record: Record, event: Event) -> Record:
    return replace(
        record,
        config=str(_data(event)["config"]),
        stop_step=_data(event).get("stop_step"),
        outcome="",
        exit_code=0,
        claim=_claim(event),
        stop_requested=record.stop_requested if _claim(event) == record.claim else "",
    )


def _attempt(record: Record, event: Event) -> Record:
    return replace(record, attempt=int(_data(event)["attempt"]))


def _generation(record: Record, event: Event) -> Record:
    data = _data(event)
    made = Generation(
        number=int(data["generation"]),
        parent=data["parent"],
        fork_step=int(data["fork_step"]),
        reason=str(data["reason"]),
        owner=str(data["owner"]),
        time_s=event.time_s,
    )
    return replace(record, generation=made.number, generations=(*record.generations, made))


def _decided(record: Record, event: Event) -> Record:
    data = _data(event)
    return replace(
        record,
        ladder=LadderState.from_json(data["state"]),
        lr_events=tuple(LrEvent(**item) for item in data["lr_events"]),
        skip=tuple((int(a), int(b)) for a, b in data["skip"]),
    )


def _ladder_moved(record: Record, event: Event) -> Record:
    return replace(record, ladder=LadderState.from_json(_data(event)["state"]))


def _committed(record: Record, event: Event) -> Record:
    commit = CommittedCheckpoint(_ref(event), str(_data(event)["digest"]), event.time_s, bool(_data(event)["finite"]))
    return replace(record, commits=(*record.commits, commit))


def _good(record: Record, event: Event) -> Record:
    return replace(record, good=record.good | {_ref(event)})


def _corrupt(record: Record, event: Event) -> Record:
    return replace(record, corrupt=record.corrupt | {_ref(event)})


def _deleted(record: Record, event: Event) -> Record:
    gone = {CheckpointRef(int(g), int(s)) for g, s in _data(event)["refs"]}
    return replace(
        record,
        deleted=record.deleted | gone,
        commits=tuple(commit for commit in record.commits if commit.ref not in gone),
        good=record.good - gone,
    )


def _fired(record: Record, event: Event) -> Record:
    fired = dict(record.fired)
    index = int(_data(event)["index"])
    fired[index] = fired.get(index, 0) + 1
    return replace(record, fired=tuple(sorted(fired.items())))


def _ref(event: Event) -> CheckpointRef:
    return CheckpointRef(int(_data(event)["generation"]), event.step or 0)


def _formed(record: Record, event: Event) -> Record:
    return replace(record, data_digest=record.data_digest or str(_data(event)["data_digest"]))


def _evaluating(record: Record, event: Event) -> Record:
    return replace(record, evaluating=Evaluating(event.step or 0, event.time_s))


def _evaluated(record: Record, event: Event) -> Record:
    found = evaluated_in(_data(event), event.step)
    return record if found is None else replace(record, evaluations=(*record.evaluations, found))


def _stop_requested(record: Record, event: Event) -> Record:
    return replace(record, stop_requested=str(_data(event)["reason"]))


_HANDLERS = {
    "stop.requested": _stop_requested,
    "world.formed": _formed,
    "run.started": _started,
    "run.continued": _started,
    "attempt.started": _attempt,
    "generation.created": _generation,
    "ladder.decided": _decided,
    "episode.closed": _ladder_moved,
    "budgets.reset": _ladder_moved,
    "checkpoint.committed": _committed,
    "checkpoint.good": _good,
    "checkpoint.corrupt": _corrupt,
    "checkpoint.deleted": _deleted,
    "drill.fired": _fired,
    "evaluation.begun": _evaluating,
    "evaluation.finished": _evaluated,
}
