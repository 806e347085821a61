"""Who is slow: each rank's own work against that of the others. Pure.

A rank that was slow once had a hiccup; one that is slow in most of the last steps holds everybody up. So does one that
is a little slow in every step, which only a long mean tells from noise. What is known belongs to the processes of one
world, not to the run's state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormsail.platform.config.detect import RanksLimits
from stormsail.workers.detect.beside import Stall

_PACE = 1.0 / 20.0  # about the last 20 steps
_SURE = 8.0  # sigma of the long mean; neighbouring steps are slow together, so few sigma would prove nothing
_LEAST_SIGMA = 0.003  # of the long mean: clocks and schedulers are no better

# What is known of each rank: the share of late steps in which it was slow, its excess (natural logarithm of its own
# work over the median of the others') lately and in the long mean, the variance of that, and the steps that were seen.
_SHARE, _LATELY, _MEAN, _VARIANCE, _STEPS = range(5)


@dataclass(frozen=True, slots=True)
class Slowness:
    """What one step says.

    Attributes:
        rank: The rank that holds the others up, else the slowest one of this step; -1 with nothing to compare.
        ratio: Its own work over the median of the others'; in the long mean for one that is a little slow in every step.
        straggler: Whether it has been slow in most of the last steps, or a little slow for long and still is.
        stalled_s: Seconds that the slowest rank alone took this time; 0 where that is nothing to speak of.
        stalled_rank: Which one, or -1.
        stalled_ratio: Its own work over the median of the others'.
    """

    rank: int = -1
    ratio: float = 1.0
    straggler: bool = False
    stalled_s: float = 0.0
    stalled_rank: int = -1
    stalled_ratio: float = 1.0


def read_slowness(
    known: Sequence[float], own_s: Sequence[float], limits: RanksLimits, stall: Stall
) -> tuple[tuple[float, ...], Slowness]:
    """Compare the ranks of one step.

    Args:
        known: What the last call returned; () before the first.
        own_s: Seconds of each rank's own work, without waiting for others.
        limits: When a rank is slow.
        stall: When a single step of it is worth a note.

    Returns:
        What is known afterwards, five numbers a rank, and what this step says.
    """
    own = np.array(own_s)
    if len(own) < 2 or not (own > 0.0).all():  # noqa: PLR2004 - ranks
        return tuple(known), Slowness()
    ratios = own / _medians_of_others(own)
    after = _learned(known, ratios, limits)
    rank, ratio = int(ratios.argmax()), float(ratios.max())
    excess = float(own[rank]) * (1.0 - 1.0 / ratio)
    stalled = (excess, rank, ratio) if ratio > stall.ratio and excess > stall.seconds else (0.0, -1, 1.0)
    persistent, steady = int(after[_SHARE].argmax()), _steady(after, limits)
    straggler = True
    if after[_SHARE, persistent] > limits.slow_share:
        rank, ratio = persistent, float(ratios[persistent])
    elif steady >= 0:
        rank, ratio = steady, math.exp(after[_MEAN, steady])
    else:
        straggler = False
    return tuple(after.ravel().tolist()), Slowness(rank, ratio, straggler, *stalled)


def _learned(known: Sequence[float], ratios: np.ndarray, limits: RanksLimits) -> np.ndarray:
    """What is known after this step, a row for each kind of knowledge."""
    size = len(ratios)
    share, lately, mean, variance, steps = np.array(known if len(known) == 5 * size else [0.0] * 5 * size).reshape(
        5, -1
    )
    steps = steps + 1.0
    # One stall says no more than one slow step.
    excess = np.log(np.clip(ratios, 1.0 / limits.slow_ratio, limits.slow_ratio))
    pace = 1.0 / np.minimum(steps, limits.steady_steps)
    apart = excess - mean
    return np.stack(
        [
            share + _PACE * ((ratios > limits.slow_ratio) - share),
            lately + _PACE * (excess - lately),
            mean + pace * apart,
            (1.0 - pace) * (variance + pace * apart**2),
            steps,
        ]
    )


def _steady(known: np.ndarray, limits: RanksLimits) -> int:
    """The rank that has been a little slow for long, beyond its noise, and still is; -1 if there is none."""
    if known[_STEPS, 0] < limits.steady_steps:
        return -1
    mean, least = known[_MEAN], math.log(limits.steady_ratio)
    sigma = np.sqrt(known[_VARIANCE] / (2.0 * limits.steady_steps)) + _LEAST_SIGMA
    slow = (mean > least) & (known[_LATELY] > least / 2.0) & (mean > _SURE * sigma)
    return int(np.where(slow, mean, -np.inf).argmax()) if slow.any() else -1


def _medians_of_others(own: np.ndarray) -> np.ndarray:
    """For each rank the median of all others; in a large world leaving one out changes nothing."""
    if len(own) > 64:  # noqa: PLR2004 - ranks
        return np.full(len(own), np.median(own))
    return np.array([np.median(np.delete(own, rank)) for rank in range(len(own))])
