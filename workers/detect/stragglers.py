"""Who is slow: each rank's own work against that of the others. Pure.

A rank that was slow once had a hiccup; one that is slow in most of the last steps holds everybody up. What is known
belongs to the processes of one world, not to the run's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormsail.platform.config.detect import RanksLimits
from stormsail.workers.detect.beside import Stall

_PACE = 1.0 / 20.0  # about the last 20 steps


@dataclass(frozen=True, slots=True)
class Slowness:
    """What one step says.

    Attributes:
        rank: The rank that has been slow in most of the last steps, else the slowest one; -1 with nothing to compare.
        ratio: Its own work over the median of the others'.
        straggler: Whether it has been slow in most of the last steps.
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
    shares: Sequence[float], own_s: Sequence[float], limits: RanksLimits, stall: Stall
) -> tuple[tuple[float, ...], Slowness]:
    """Compare the ranks of one step.

    Args:
        shares: By rank, in which share of the last steps it was slow; () before the first.
        own_s: Seconds of each rank's own work, without waiting for others.
        limits: When a rank is slow.
        stall: When a single step of it is worth a note.

    Returns:
        The shares afterwards, and what this step says.
    """
    own = np.array(own_s)
    if len(own) < 2 or not (own > 0.0).all():  # noqa: PLR2004 - ranks
        return tuple(shares), Slowness()
    ratios = own / _medians_of_others(own)
    before = np.array(shares) if len(shares) == len(own) else np.zeros(len(own))
    after = before + _PACE * ((ratios > limits.slow_ratio) - before)
    rank = int(ratios.argmax())
    ratio = float(ratios[rank])
    persistent = int(after.argmax())
    straggler = bool(after[persistent] > limits.slow_share)
    named = persistent if straggler else rank
    excess = float(own[rank]) * (1.0 - 1.0 / ratio)
    stalled = (excess, rank, ratio) if ratio > stall.ratio and excess > stall.seconds else (0.0, -1, 1.0)
    return tuple(after.tolist()), Slowness(named, float(ratios[named]), straggler, *stalled)


def _medians_of_others(own: np.ndarray) -> np.ndarray:
    """For each rank the median of all others; in a large world leaving one out changes nothing."""
    if len(own) > 64:  # noqa: PLR2004 - ranks
        return np.full(len(own), np.median(own))
    return np.array([np.median(np.delete(own, rank)) for rank in range(len(own))])
