"""From events to incidents: which fault led to which decision, what followed, and how long it took; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stormsail.platform.messages import FaultKind, Tier
from stormsail.platform.vault.places import in_order
from stormsail.supervisor.report.fields import EventLike, Row, real, step_of, table, text, whole
from stormsail.supervisor.report.model import DecisionEntry, EvidenceEntry, IncidentEntry, PhaseTimes
from stormsail.supervisor.report.timeline import Span

_ENDS = {"run.stopped", "run.exhausted", "run.failed", "run.finished"}


@dataclass
class Attempt:
    """One fault and the attempt to repair it; a decision is taken again where a checkpoint could not be loaded."""

    fault: EventLike | None = None
    decided: list[EventLike] = field(default_factory=list)
    restored: EventLike | None = None
    first_step: EventLike | None = None
    caught_up: EventLike | None = None
    finished: EventLike | None = None
    evidence: EventLike | None = None


@dataclass
class Climb:
    """All attempts of one episode, in order."""

    episode: int | None
    attempts: list[Attempt] = field(default_factory=list)
    replay: Mapping[str, object] | None = None
    closed: bool = False
    diagnosis: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """The moments of one attempt, in seconds since the epoch, each at or after the one before."""

    fault_s: float
    detected_s: float
    decided_s: float
    load_begun_s: float
    loaded_s: float
    end_s: float
    caught_up: bool

    def spans(self) -> list[Span]:
        """The attempt on the run's timeline; catching up is told by the steps themselves."""
        return [
            Span("detect", self.fault_s, self.detected_s),
            Span("decide", self.detected_s, self.decided_s),
            Span("restart", self.decided_s, self.load_begun_s),
            Span("load", self.load_begun_s, self.loaded_s),
        ]


def climbs(events: Iterable[EventLike]) -> list[Climb]:
    """Put faults, decisions and what followed together, one climb per episode, in the order of their faults."""
    weaver = _Weaver()
    for event in events:
        weaver.take(event)
    return [*weaver.found.values(), *weaver.leftover()]


def times(climb: Climb, rows: Sequence[Row], end_s: float) -> list[Times]:
    """Return the moments of each attempt; the last ends where the run caught up, or with the run."""
    found: list[Times] = []
    limit_s = end_s
    for attempt in reversed(climb.attempts):
        moments = _moments(attempt, rows, limit_s)
        found.append(moments)
        limit_s = moments.fault_s
    return found[::-1]


def describe(number: int, climb: Climb, moments: Sequence[Times], *, lost_steps: int, start_s: float) -> IncidentEntry:
    """Make the report's entry of one episode.

    Args:
        number: Its number within the report.
        climb: The episode.
        moments: What `times` gave.
        lost_steps: Steps that were computed a second time because of its decisions.
        start_s: Start of the run in seconds since the epoch, which times in the entry count from.
    """
    first = climb.attempts[0]
    decisions = tuple(_decision(event, start_s) for attempt in climb.attempts for event in attempt.decided)
    recovered_s = moments[-1].end_s if moments[-1].caught_up else None
    data = first.fault.data if first.fault is not None else {}
    phases = _phases(moments)
    return IncidentEntry(
        number=number,
        episode=climb.episode,
        kind=text(data, "kind") or "unknown",
        tier=decisions[-1].tier if decisions else None,
        tier_name=decisions[-1].tier_name if decisions else "",
        tiers_tried=tuple(dict.fromkeys(d.tier for d in decisions if d.tier is not None)),
        onset=whole(data, "onset"),
        step=step_of(first.fault) if first.fault is not None else None,
        detected_s=moments[0].detected_s - start_s,
        decided_s=decisions[-1].decided_s if decisions else None,
        recovered_s=None if recovered_s is None else recovered_s - start_s,
        mttr_s=None if recovered_s is None else phases.total_s,
        lost_steps=lost_steps,
        phases=phases,
        reason=decisions[-1].reason if decisions else "",
        decisions=decisions,
        recovered=recovered_s is not None,
        closed=climb.closed,
        rank=whole(data, "rank"),
        error=text(data, "error"),
        replay=None if climb.replay is None else dict(climb.replay),
        restored_from=_places(climb),
        evidence=tuple(_evidence(attempt.evidence) for attempt in climb.attempts if attempt.evidence is not None),
        diagnosis=None if climb.diagnosis is None else dict(climb.diagnosis),
        samples=_samples(data),
    )


class _Weaver:
    """Takes events in order and remembers which fault and which repair the next one belongs to."""

    def __init__(self) -> None:
        self.found: dict[object, Climb] = {}
        self._faults: list[EventLike] = []
        self._failed: list[EventLike] = []
        self._attempt: Attempt | None = None
        self._climb: Climb | None = None
        self._evidence: EventLike | None = None
        self._diagnosis: Mapping[str, object] | None = None

    def take(self, event: EventLike) -> None:
        match event.kind:
            case "fault.detected" | "hang.evidence" | "hang.cleared":
                self._seen(event)
            case "diagnosis.made" | "ladder.shadowed":
                # What shadow mode left has its own place in the report; its diagnosis is not the next incident's.
                made = event.kind == "diagnosis.made"
                self._diagnosis = {"step": step_of(event), **event.data} if made else None
            case "ladder.decided":
                self._decided(event)
            case "state.restored" | "recovery.first_step" | "recovery.caught_up":
                self._followed(event)
            case "replay.finished":
                self._replayed(event)
            case "episode.closed":
                self._closed(event)
            case "run.continued":
                self._faults, self._attempt, self._climb = [], None, None
            case _:
                self._ended(event)

    def leftover(self) -> list[Climb]:
        """The faults that ended the run, or wait for their decision: no repair was tried for them."""
        return [Climb(None, [Attempt(fault)]) for fault in self._failed + self._faults[:1]]

    def _seen(self, event: EventLike) -> None:
        if event.kind == "fault.detected":
            self._faults.append(event)
        else:
            self._evidence = event if event.kind == "hang.evidence" else None

    def _decided(self, event: EventLike) -> None:
        episode = whole(event.data, "episode")
        if self._faults or self._attempt is None:
            # Of several faults the first is the cause; the others are its echo.
            self._attempt = Attempt(self._faults[0] if self._faults else None, evidence=self._evidence)
            self._evidence = None
            key = ("without a number", event.number) if episode is None else episode
            self._climb = self.found.setdefault(key, Climb(episode))
            self._climb.attempts.append(self._attempt)
            self._climb.diagnosis = self._climb.diagnosis or self._diagnosis
        self._faults, self._diagnosis = [], None
        self._attempt.decided.append(event)

    def _followed(self, event: EventLike) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        if event.kind == "state.restored":
            attempt.restored = event
        elif event.kind == "recovery.first_step":
            attempt.first_step = attempt.first_step or event
        else:
            attempt.caught_up = attempt.caught_up or event

    def _replayed(self, event: EventLike) -> None:
        replaying = [t for t in self.found.values() if any(_tier(d) is Tier.FP32_REPLAY for d in _decisions(t))]
        if replaying:
            replaying[-1].replay = {"step": step_of(event), **event.data}

    def _closed(self, event: EventLike) -> None:
        climb = self.found.get(whole(event.data, "episode"))
        if climb is not None:
            climb.closed = True

    def _ended(self, event: EventLike) -> None:
        """A fault that failed the run stays in the report; one that only came with the end does not."""
        if event.kind == "run.failed":
            self._failed += self._faults[:1]
        if event.kind == "run.finished" and self._attempt is not None:
            self._attempt.finished = event
        if event.kind in _ENDS:
            self._faults = []


def _samples(data: Mapping[str, object]) -> tuple[int, int] | None:
    match (table(data, "evidence") or {}).get("samples"):
        case [int(first), int(last)]:
            return first, last
        case _:
            return None


def _evidence(event: EventLike) -> EvidenceEntry:
    keys = event.data.get("keys")
    return EvidenceEntry(
        finding=text(event.data, "finding"),
        keys=tuple(str(key) for key in keys) if isinstance(keys, list | tuple) else (),
        folder=text(event.data, "folder"),
        problem=text(event.data, "problem"),
    )


def _decisions(climb: Climb) -> list[EventLike]:
    return [event for attempt in climb.attempts for event in attempt.decided]


def _tier(event: EventLike) -> Tier | None:
    name = text(event.data, "tier")
    return Tier(name) if name in list(Tier) else None


def _decision(event: EventLike, start_s: float) -> DecisionEntry:
    tier = _tier(event)
    restore = table(event.data, "restore")
    factor = real(event.data, "lr_factor")
    return DecisionEntry(
        tier=None if tier is None else tier.number,
        tier_name="" if tier is None else str(tier),
        decided_s=event.time_s - start_s,
        restore=None if restore is None else {key: whole(restore, key) or 0 for key in ("generation", "step")},
        lr_factor=1.0 if factor is None else factor,
        precision=text(event.data, "precision"),
        fp32_until=whole(event.data, "fp32_until"),
        reason=text(event.data, "reason"),
        action=text(event.data, "action"),
    )


def _places(climb: Climb) -> tuple[str, ...]:
    restored = [attempt.restored for attempt in climb.attempts if attempt.restored is not None]
    return in_order(table(restored[-1].data, "places") or ()) if restored else ()


def _caught_up_s(attempt: Attempt, rows: Sequence[Row]) -> float | None:
    """When the first new step was done; from the rows where a second fault or a new supervisor hid the event.

    What fails after the last step, as its evaluation may, has no new step before it: it is cured when the run is there again.
    """
    if not attempt.decided or _tier(attempt.decided[-1]) in (None, Tier.EXHAUSTED):
        return None
    if attempt.caught_up is not None:
        worker_s = real(attempt.caught_up.data, "at_s")
        return attempt.caught_up.time_s if worker_s is None else worker_s
    decided_s = attempt.decided[-1].time_s
    reached = max((row.step for row in rows if row.time_s <= decided_s), default=-1)
    to_reach = reached + 1 if attempt.finished is None else reached
    found = min((row.time_s for row in rows if row.time_s > decided_s and row.step >= to_reach), default=None)
    return decided_s if found is None and attempt.finished is not None else found


def _moments(attempt: Attempt, rows: Sequence[Row], limit_s: float) -> Times:
    """Put the moments of an attempt in order: clocks of several machines may disagree a little."""
    detected_s = _first_of(attempt).time_s
    fault_s = min(_fault_s(attempt, rows, detected_s), detected_s)
    decided_s = attempt.decided[0].time_s if attempt.decided else detected_s
    caught_up_s = _caught_up_s(attempt, rows)
    end_s = max(decided_s, limit_s if caught_up_s is None else min(caught_up_s, limit_s))
    loaded_s = min(max(decided_s, _loaded_s(attempt, rows, end_s)), end_s)
    took_s = 0.0 if attempt.restored is None else (real(attempt.restored.data, "took_s") or 0.0)
    return Times(
        fault_s=fault_s,
        detected_s=detected_s,
        decided_s=decided_s,
        load_begun_s=max(decided_s, loaded_s - took_s),
        loaded_s=loaded_s,
        end_s=end_s,
        caught_up=caught_up_s is not None and caught_up_s <= end_s,
    )


def _first_of(attempt: Attempt) -> EventLike:
    return attempt.fault if attempt.fault is not None else attempt.decided[0]


def _fault_s(attempt: Attempt, rows: Sequence[Row], detected_s: float) -> float:
    """When the fault happened: as injected, or else the end of the last step before it."""
    data = attempt.fault.data if attempt.fault is not None else {}
    known_s = real(data, "fault_time_s")
    if known_s is not None:
        return known_s
    onset = whole(data, "onset")
    numeric = text(data, "kind") in {str(kind) for kind in FaultKind if kind.numeric}
    before = [row.time_s for row in rows if row.time_s <= detected_s]
    if numeric and onset is not None:
        before = [row.time_s for row in rows if row.time_s <= detected_s and row.step < onset]
    return max(before, default=detected_s)


def _loaded_s(attempt: Attempt, rows: Sequence[Row], end_s: float) -> float:
    """When steps began again: a worker's word of the load may arrive later than the first step begins."""
    marks = [attempt.restored.time_s] if attempt.restored is not None else []
    if attempt.first_step is not None:
        first = attempt.first_step
        key = (first.generation, step_of(first))
        marks += [row.begun_s for row in rows if (row.generation, row.step) == key] or [first.time_s]
    return min(marks, default=end_s)


def _phases(moments: Sequence[Times]) -> PhaseTimes:
    return PhaseTimes(
        detect_s=sum(m.detected_s - m.fault_s for m in moments),
        decide_s=sum(m.decided_s - m.detected_s for m in moments),
        restart_s=sum(m.load_begun_s - m.decided_s for m in moments),
        load_s=sum(m.loaded_s - m.load_begun_s for m in moments),
        catch_up_s=sum(m.end_s - m.loaded_s for m in moments),
    )
