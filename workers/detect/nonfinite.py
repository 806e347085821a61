"""Numbers that are not finite: the update is dropped at once, and too many drops in a row are an incident. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DropState:
    """The drops in a row up to now.

    Attributes:
        row: Dropped updates since the last step with finite numbers.
        first: Step of the first of them, or -1.
    """

    row: int = 0
    first: int = -1

    def dropped(self, step: int) -> DropState:
        """One more drop at `step`."""
        return DropState(self.row + 1, self.first if self.row else step)

    def over(self) -> DropState:
        """A step with finite numbers."""
        return DropState() if self.row else self
