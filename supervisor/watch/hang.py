"""Who is stuck: the age of each rank's step and phase, against the limit of that phase (pure).

A living process is no progress. Limits depend on the phase, so that building, loading and saving do not count as
hanging steps. What comes again and again, and waits for nobody outside, is learned from the attempt: steps, the
copies that saves begin with, and evaluations. Every other phase comes once, or may wait for a store that is away for as long as the
run does: its limit is fixed. What is known here belongs to one attempt and is thrown away with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stormsail.platform.config.hang import HangSection
from stormsail.platform.messages import Heartbeat, Phase

LEARNED = (Phase.STEP, Phase.SAVE, Phase.EVALUATE)
"""Phases whose limit is learned."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rank is.

    Attributes:
        phase: What it does.
        step: The step it is at.
        since_s: When it was first seen there.
        heard_s: When it was last heard of.
    """

    phase: Phase
    step: int
    since_s: float
    heard_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a rank may stay at one place, in seconds.

    Attributes:
        step_s: In a step, at most.
        other_s: In any other phase.
        eval_s: In an evaluation, at most.
        factor: A step, a save, or an evaluation may take this many times the longest one seen.
        floor_s: A limit that was learned is never shorter.
        learn_steps: Steps, saves, or evaluations that must have been seen before their length says anything; the first of an
            attempt are slow.
        silent_s: Who is silent for this long is stopped, or holds its interpreter's lock for ever.
    """

    step_s: float
    other_s: float
    eval_s: float = 600.0
    factor: float = 10.0
    floor_s: float = 60.0
    learn_steps: int = 20
    silent_s: float = 5.0

    @classmethod
    def of(cls, section: HangSection, *, step_s: float, other_s: float, eval_s: float) -> Limits:
        """The limits of a run."""
        return cls(step_s, other_s, eval_s, section.factor, section.floor_s, section.learn_steps, section.silent_s)


@dataclass(frozen=True, slots=True)
class Stays:
    """How long ranks were seen in one phase before they moved on.

    Attributes:
        longest_s: The longest time.
        count: How many such times were seen.
    """

    longest_s: float = 0.0
    count: int = 0

    def with_one(self, stay_s: float) -> Stays:
        """One more."""
        return Stays(max(self.longest_s, stay_s), self.count + 1)


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of an attempt.

    Attributes:
        ranks: Where each rank is.
        stays: What was learned about each phase of `LEARNED`, in this generation.
        generation: The newest generation that was heard of; another one may compute in another precision.
    """

    ranks: Mapping[int, Progress] = field(default_factory=dict)
    stays: Mapping[Phase, Stays] = field(default_factory=dict)
    generation: int = 0

    def limit_s(self, phase: Phase, limits: Limits) -> float:
        """How long a rank may stay in a phase."""
        most_s = {Phase.STEP: limits.step_s, Phase.EVALUATE: limits.eval_s}.get(phase, limits.other_s)
        stays = self.stays.get(phase, Stays())
        if stays.count < limits.learn_steps:
            return most_s
        return min(most_s, max(limits.floor_s, limits.factor * stays.longest_s))


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rank that has not moved for too long.

    Attributes:
        rank: Which.
        progress: Where it is.
        age_s: Since when.
        limit_s: How long it might have been there.
        silent_s: Since when nothing was heard of it at all; 0 while it is heard of.
    """

    rank: int
    progress: Progress
    age_s: float
    limit_s: float
    silent_s: float

    @property
    def reason(self) -> str:
        """What is found, in one line."""
        silent = f"; nothing was heard of it for {self.silent_s:.0f} s" if self.silent_s else ""
        return (
            f"rank {self.rank} has been in phase {self.progress.phase} of step {self.progress.step} "
            f"for {self.age_s:.0f} s, the limit is {self.limit_s:.0f} s{silent}"
        )


def observe(known: Watched, beat: Heartbeat, now_s: float) -> Watched:
    """What is known after one more heartbeat."""
    if beat.generation > known.generation:
        known = Watched(known.ranks, generation=beat.generation)
    before = known.ranks.get(beat.rank)
    if before is None or (before.phase, before.step) != (beat.phase, beat.step):
        ranks = {**known.ranks, beat.rank: Progress(beat.phase, beat.step, now_s, now_s)}
    else:
        return replace(known, ranks={**known.ranks, beat.rank: replace(before, heard_s=now_s)})
    if before is None or before.phase not in LEARNED:
        return replace(known, ranks=ranks)
    learned = known.stays.get(before.phase, Stays()).with_one(now_s - before.since_s)
    return replace(known, ranks=ranks, stays={**known.stays, before.phase: learned})


def find_stuck(known: Watched, limits: Limits, now_s: float) -> Stuck | None:
    """The rank to blame if anyone is beyond its limit, or None: one that is silent, or else the one longest beyond.

    When one rank stops, all others wait for it, and are as late as it is. Ranks that are done are never stuck.
    """
    late = [
        Stuck(rank, at, now_s - at.since_s, known.limit_s(at.phase, limits), _silence(at, limits, now_s))
        for rank, at in known.ranks.items()
        if at.phase is not Phase.DONE and now_s - at.since_s > known.limit_s(at.phase, limits)
    ]
    return max(late, key=lambda item: (item.silent_s > 0.0, item.age_s - item.limit_s), default=None)


def _silence(at: Progress, limits: Limits, now_s: float) -> float:
    silent_s = now_s - at.heard_s
    return silent_s if silent_s > limits.silent_s else 0.0
