"""Numbers that are not finite: the update is dropped at once, and too many drops are an incident. Pure.

Too many is a few in a row, or for long a large share of all steps: with NaN at every second step a run computes twice
as long as it should, and never has two in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_PACE = 0.05
_LEAST = 10
_FORGOTTEN = 0.01
_WITHIN = round(2 / _PACE)


@dataclass(frozen=True, slots=True)
class Lately:
    """How many of the last 20 or so steps were bad.

    Attributes:
        share: Leaky share of bad steps, 0 to 1; each step moves it by a twentieth of the way.
        count: Bad steps since there was none for long.
        since: The first of them, or -1.
    """

    share: float = 0.0
    count: int = 0
    since: int = -1

    def bad(self, step: int) -> Lately:
        """One more bad step."""
        return Lately(self.share + _PACE * (1.0 - self.share), self.count + 1, self.since if self.count else step)

    def good(self) -> Lately:
        """One more good step."""
        share = self.share * (1.0 - _PACE)
        return Lately(share, self.count, self.since) if share >= _FORGOTTEN else Lately()

    def too_many(self, limit: float, patience: int) -> bool:
        """Whether more than `limit` of the last steps were bad; never by fewer than 10, nor than `patience` in all."""
        return self.share > limit and self.count >= max(_LEAST, patience)

    def onset(self, step: int) -> int:
        """About where they became many, seen from `step`."""
        return max(self.since, step - _WITHIN)


@dataclass(frozen=True, slots=True)
class DropState:
    """The dropped updates up to now.

    Attributes:
        row: Dropped updates since the last step with finite numbers.
        first: Step of the first of them, or -1.
        lately: Dropped updates among the last steps.
    """

    row: int = 0
    first: int = -1
    lately: Lately = field(default_factory=Lately)

    def dropped(self, step: int) -> DropState:
        """One more drop at `step`."""
        return DropState(self.row + 1, self.first if self.row else step, self.lately.bad(step))

    def over(self) -> DropState:
        """A step with finite numbers."""
        return DropState(lately=self.lately.good()) if self.row or self.lately.count else self
