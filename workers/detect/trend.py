"""A robust forecast of the next losses: the running median, carried on along a damped trend. Pure.

It is what a learnt forecast has to be better than. Its band comes from how far its own earlier forecasts were off.
"""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.workers.detect.rules.windows import MAD_TO_SIGMA, median

AHEAD = 5
"""Steps that are forecast."""

_RECENT = 16
_DAMPING = 0.8
_FLOOR = 0.004  # of the level: healthy runs scatter by about this much late in training

Band = tuple[float, float]
"""What is expected, and its standard deviation, in nats."""


def forecast(losses: Sequence[float]) -> tuple[Band, ...]:
    """The next `AHEAD` losses.

    Args:
        losses: The last losses, oldest first, in nats; at least twice `_RECENT` of them.

    Returns:
        A band for each step ahead; () where too little is known.
    """
    if len(losses) < 2 * _RECENT:
        return ()
    means = _means(losses)
    errors = [
        abs(losses[last] - _means(losses[: last - ahead])[ahead])
        for ahead in (0, AHEAD - 1)
        for last in range(len(losses) - _RECENT, len(losses))
        if last - ahead >= _RECENT
    ]
    sigma = max(MAD_TO_SIGMA * median(errors), _FLOOR * abs(means[0]))
    return tuple((mean, sigma) for mean in means)


def _means(losses: Sequence[float]) -> list[float]:
    recent = list(losses[-_RECENT:])
    half = len(recent) // 2
    slope = (median(recent[half:]) - median(recent[:half])) / half if half else 0.0
    level = median(recent) + slope * half
    means = []
    step = slope
    for _ in range(AHEAD):
        step *= _DAMPING
        level += step
        means.append(level)
    return means
