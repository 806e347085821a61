"""Who is stuck: the age of each rank's step and phase, against the limit of that phase (pure).

A living process is no progress. Limits depend on the phase, so that building, loading and saving do not count as
hanging steps. What is known here belongs to one attempt and is thrown away with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stormsail.platform.messages import Heartbeat, Phase


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rank is.

    Attributes:
        phase: What it does.
        step: The step it is at.
        since_s: When it was first seen there.
    """

    phase: Phase
    step: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a rank may stay at one place, in seconds.

    Attributes:
        step_s: In a step.
        other_s: In any other phase.
    """

    step_s: float
    other_s: float

    def of(self, phase: Phase) -> float:
        """The limit of a phase."""
        return self.step_s if phase is Phase.STEP else self.other_s


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rank that has not moved for too long."""

    rank: int
    progress: Progress
    age_s: float
    limit_s: float

    @property
    def reason(self) -> str:
        """What is found, in one line."""
        return (
            f"rank {self.rank} has been in phase {self.progress.phase} of step {self.progress.step} "
            f"for {self.age_s:.0f} s, the limit is {self.limit_s:.0f} s"
        )


def observe(known: Mapping[int, Progress], beat: Heartbeat, now_s: float) -> dict[int, Progress]:
    """What is known after one more heartbeat."""
    before = known.get(beat.rank)
    if before is not None and (before.phase, before.step) == (beat.phase, beat.step):
        return dict(known)
    return {**known, beat.rank: Progress(beat.phase, beat.step, now_s)}


def find_stuck(known: Mapping[int, Progress], limits: Limits, now_s: float) -> Stuck | None:
    """The rank that is longest beyond its limit, or None. Ranks that are done are never stuck."""
    late = [
        Stuck(rank, progress, now_s - progress.since_s, limits.of(progress.phase))
        for rank, progress in known.items()
        if progress.phase is not Phase.DONE and now_s - progress.since_s > limits.of(progress.phase)
    ]
    return max(late, key=lambda item: item.age_s - item.limit_s, default=None)
