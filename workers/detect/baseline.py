"""What is normal for one signal: a short running median, and how far accepted steps scatter around it. Pure.

Only accepted values enter. An outlier therefore never widens the band that it is judged by.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

LEVEL_STEPS = 16
"""Accepted values whose median is the level."""

_MAD_TO_SIGMA = 1.4826  # for normally scattered values


@dataclass(frozen=True, slots=True)
class Baseline:
    """A signal's recent past.

    Attributes:
        recent: The last `LEVEL_STEPS` accepted values, oldest first.
        residuals: What the last accepted values were above the level of their time, oldest first.
    """

    recent: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()

    @property
    def level(self) -> float:
        """The running median; 0 before the first value."""
        return median(self.recent) if self.recent else 0.0

    @property
    def scatter(self) -> float:
        """One robust standard deviation of the residuals; 0 before the second value."""
        if not self.residuals:
            return 0.0
        middle = median(self.residuals)
        return _MAD_TO_SIGMA * median(abs(residual - middle) for residual in self.residuals)

    def z(self, value: float, floor: float) -> float:
        """How many robust standard deviations `value` lies above the level (negative: below).

        The scatter is taken around the residuals' own median, since in a descent all of them lie below the
        level; the value is measured from the level itself, so that a descent that slows down is no rise.

        Args:
            value: The signal now.
            floor: Smallest scale, in the signal's unit; above 0.
        """
        if not self.residuals:
            return 0.0
        return (value - self.level) / max(self.scatter, floor)

    def accept(self, value: float, window: int) -> Baseline:
        """The past with one more value in it.

        Args:
            value: Must be finite.
            window: Residuals to remember.
        """
        residuals = (*self.residuals, value - self.level) if self.recent else self.residuals
        return Baseline((*self.recent, value)[-LEVEL_STEPS:], residuals[-window:])
