"""One rank against the others: a loss or a gradient shard that leaves its usual share. Pure.

All ranks draw from the same data, so their losses scatter around a common mean, and each shard holds a steady share
of the gradient's norm. A rank whose arithmetic has gone wrong leaves that share and stays away, while the reduced
numbers may still look healthy. One bad sample makes one bad step, so it takes several in a row. Judged is only what
is too high: with two ranks the other one is low by as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stormsail.platform.config.detect import RanksLimits

Floats = npt.NDArray[np.float64]

_PACE = 0.02
_ABSOLUTE_TO_SIGMA = 1.2533
_LOSS_FLOOR = 0.01  # nats
_FORGET_STEPS = 200
_NORM_FLOOR = 0.05  # of the logarithm of the share


@dataclass(frozen=True, slots=True)
class Share:
    """A signal of each rank: running mean, and running mean distance from it."""

    levels: tuple[float, ...] = ()
    distances: tuple[float, ...] = ()

    def z(self, values: Floats, floor: float) -> Floats:
        """How many standard deviations each rank lies above its level."""
        scatter = np.maximum(_ABSOLUTE_TO_SIGMA * np.array(self.distances), floor)
        found: Floats = (values - np.array(self.levels)) / scatter
        return found

    def learn(self, values: Floats, pace: float) -> Share:
        """The share with one more step in it."""
        if len(values) != len(self.levels):
            return Share(tuple(values.tolist()), (0.0,) * len(values))
        levels, distances = np.array(self.levels), np.array(self.distances)
        apart = values - levels
        return Share(
            tuple((levels + pace * apart).tolist()),
            tuple((distances + pace * (np.abs(apart) - distances)).tolist()),
        )


@dataclass(frozen=True, slots=True)
class RankState:
    """What is remembered of the ranks of this world.

    Attributes:
        loss: Mean loss of each rank above the mean of all, in nats.
        norm: Logarithm of each rank's share of the gradient's norm.
        steps: Steps learnt from, up to where it no longer matters.
        flagged: Steps in a row, by rank, that were out of its share.
    """

    loss: Share = Share()
    norm: Share = Share()
    steps: int = 0
    flagged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankReading:
    """The rank that is furthest from its share.

    Attributes:
        rank: Which, or -1 where nothing can be said.
        z: How far, in robust standard deviations.
        in_row: Flagged steps of it in a row.
        what: "loss" or "gradient".
    """

    rank: int = -1
    z: float = 0.0
    in_row: int = 0
    what: str = ""


def read_ranks(
    state: RankState, losses: Sequence[float], norms: Sequence[float], limits: RanksLimits, *, calm: bool
) -> tuple[RankState, RankReading]:
    """Judge one step and learn from it.

    Args:
        state: What is remembered.
        losses: Mean loss of each rank, in nats.
        norms: Norm of each rank's gradient shard.
        limits: The limits.
        calm: Whether all ranks together look healthy; where they do not, no rank is blamed and nothing learnt.
    """
    loss, norm = np.array(losses), np.array(norms)
    if len(loss) < 2 or not calm or not np.isfinite(loss).all() or not (norm > 0.0).all():  # noqa: PLR2004 - ranks
        return state, RankReading()
    apart, share = loss - loss.mean(), np.log(norm) - 0.5 * math.log(float((norm * norm).sum()))
    if len(state.flagged) != len(loss):
        state = RankState(flagged=(0,) * len(loss))
    learned = _learned(state, apart, share)
    if state.steps < limits.least:
        return learned, RankReading()
    scores = np.stack([state.loss.z(apart, _LOSS_FLOOR), state.norm.z(share, _NORM_FLOOR)])
    highest = scores.max(axis=0)
    flagged = tuple(
        before + 1 if z > limits.z else 0 for before, z in zip(state.flagged, highest.tolist(), strict=True)
    )
    rank = int(highest.argmax())
    reading = RankReading(
        rank, float(highest[rank]), flagged[rank], ("loss", "gradient")[int(scores[:, rank].argmax())]
    )
    # What is out of its share must not become it, unless it has been reported for long and is how things are now.
    kept = state if 0 < max(flagged) <= _FORGET_STEPS else learned
    return replace(kept, flagged=flagged), reading


def _learned(state: RankState, apart: Floats, share: Floats) -> RankState:
    pace = max(_PACE, 1.0 / (state.steps + 1))
    return replace(
        state, loss=state.loss.learn(apart, pace), norm=state.norm.learn(share, pace), steps=min(state.steps + 1, 1000)
    )
