"""What a run waits for between the start of an attempt and its first step, or in an evaluation, and until when (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from stormsail.platform.messages import Phase
from stormsail.supervisor.watch.hang import Limits, Watched

# In the order in which a worker goes through them.
_DOINGS = {
    Phase.START: "begin",
    Phase.BUILD: "set up its data and engine",
    Phase.JOIN: "meet the others",
    Phase.LOAD: "load the state",
    Phase.CONSULT: "be told what to do",
    Phase.REPLAY: "replay steps for the diagnosis",
    Phase.STEP: "finish its first step",
    Phase.EVALUATE: "evaluate its state",
    Phase.SAVE: "save its state",
    Phase.FINISH: "finish its saves",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a run waits for.

    Attributes:
        what: In words, to follow "waiting for".
        age_s: For how long it has.
        left_s: For how long it will at most.
    """

    what: str
    age_s: float
    left_s: float


def describe(watched: Watched, limits: Limits, *, joined: int, expected: int, begun_s: float, now_s: float) -> Wait:
    """The one thing that holds an attempt up before its first step.

    Args:
        watched: Where the workers are that have been heard of.
        limits: How long each phase may take.
        joined: How many workers have asked for a place.
        expected: How many there are to be.
        begun_s: When the attempt began, by the clock of `watched`.
        now_s: Now, by the same clock.
    """
    if joined < expected:
        return Wait(
            f"worker processes: {joined} of {expected} have joined",
            now_s - begun_s,
            max(0.0, begun_s + limits.other_s - now_s),
        )
    order = list(_DOINGS)
    behind = sorted(
        (order.index(at.phase), at.since_s, rank) for rank, at in watched.ranks.items() if at.phase in _DOINGS
    )
    if not behind:
        return Wait("the workers to say where they are", now_s - begun_s, max(0.0, begun_s + limits.other_s - now_s))
    index, since_s, rank = behind[0]
    limit_s = watched.limit_s(order[index], limits)
    return Wait(f"rank {rank} to {_DOINGS[order[index]]}", now_s - since_s, max(0.0, since_s + limit_s - now_s))


def describe_evaluation(watched: Watched, limits: Limits, *, now_s: float) -> Wait | None:
    """The evaluation that the run is in, or None.

    Args:
        watched: Where the workers are.
        limits: How long each phase may take.
        now_s: Now, by the clock of `watched`.
    """
    inside = [(at.since_s, at.step) for at in watched.ranks.values() if at.phase is Phase.EVALUATE]
    if not inside:
        return None
    since_s, step = min(inside)
    left_s = since_s + watched.limit_s(Phase.EVALUATE, limits) - now_s
    return Wait(f"the evaluation after step {step}", now_s - since_s, max(0.0, left_s))
