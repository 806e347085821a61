"""Figures of the last values of a signal. Pure."""

from __future__ import annotations

import math
from operator import mul

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normally scattered values."""

Values = tuple[float, ...]


def push(values: Values, value: float, size: int) -> Values:
    """The window with one more value at its end and at most `size` in all."""
    kept = values if len(values) < size else values[len(values) - size + 1 :]
    return (*kept, value)


def mean(values: Values) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def mean_and_sigma(values: Values, *, ddof: int = 0) -> tuple[float, float]:
    """Mean and standard deviation (`ddof` 1: the unbiased one); (0, 0) of nothing."""
    middle = mean(values)
    if len(values) <= ddof:
        return middle, 0.0
    apart = [value - middle for value in values]
    return middle, math.sqrt(sum(map(mul, apart, apart)) / (len(values) - ddof))


def median(values: Values | list[float]) -> float:
    """The middle value; 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0


def median_and_scatter(values: Values) -> tuple[float, float]:
    """Median, and the robust standard deviation around it."""
    middle = median(values)
    return middle, MAD_TO_SIGMA * median([abs(value - middle) for value in values])


def ratio(value: float, base: float) -> float:
    """`value` over `base`, finite also where `base` is 0."""
    return min(value / base, 1e12) if base > 0.0 else 1e12 if value > 0.0 else 0.0
