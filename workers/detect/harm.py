"""How ill a step is, in one number, so that a replay's variants can be compared with what happened. Pure.

A step's own batch is the largest source of noise in its loss. So the loss is compared with what the very same batch
costs under the weights from before the incident (its *expected* loss): what is left is what the incident did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stormsail.platform.diagnosis import SampleScore, TraceRow
from stormsail.workers.detect.signs import Limits, is_dead, is_finite

HEALED = 0.7
"""Share of the harm that must be gone."""

_EXCESS = 0.03  # of the calm level: healthy steps stay below half of it
_CALM = 0.5
_MOST = 10.0
_SAMPLE_Z = 6.0
_SEVERAL, _SEVERAL_Z = 2, 3.5
_MEAN_Z = 5.0
_SAMPLE_FLOOR = 0.08  # of the median: samples of one kind differ by about that


def harm(row: TraceRow, expected: float, limits: Limits) -> float:
    """0 for a calm step, about 1 at the limit of what is calm, at most 10."""
    if not is_finite(row):
        return _MOST
    spread = 6.0 * limits.scatter
    parts = [
        (row.loss - expected) / (_EXCESS * abs(limits.level)),
        abs(row.loss - limits.level) / spread,
        _log_ratio(row.grad_norm, limits.norm) / _log_ratio(limits.norm_limit, limits.norm),
        2.0 if is_dead(row, limits) else 0.0,
    ]
    if limits.update > 0.0 and row.update_rms > 0.0:
        parts.append(_log_ratio(row.update_rms, limits.update) / math.log(1.8))
    return min(max(0.0, max(parts) - _CALM), _MOST)


def harms(rows: Sequence[TraceRow], expected: Sequence[float], limits: Limits) -> tuple[float, ...]:
    """`harm` of each row."""
    return tuple(harm(row, cost, limits) for row, cost in zip(rows, expected, strict=False))


def healed(before: Sequence[float], after: Sequence[float]) -> float:
    """Share of the harm that is gone, over the steps that both hold; 0 where there was none."""
    count = min(len(before), len(after))
    total = sum(before[:count])
    return 1.0 - sum(after[:count]) / total if total > 0.0 else 0.0


def suspects_of(scores: Sequence[SampleScore], onset: int) -> tuple[SampleScore, ...]:
    """All samples of the steps, from the onset on, whose batch stands out under calm weights from those before.

    A batch stands out by its mean, by one sample far away, or by several that are fairly far.
    """
    calm = sorted(score.loss for score in scores if score.step < onset and math.isfinite(score.loss))
    if not calm:
        return ()
    middle, scale = _middle_and_scale(calm)
    found: list[SampleScore] = []
    for step in sorted({score.step for score in scores if score.step >= onset}):
        batch = [score for score in scores if score.step == step]
        if _stands_out([(score.loss - middle) / scale for score in batch]):
            found += batch
    return tuple(found)


def outliers(scores: Sequence[SampleScore], onset: int) -> tuple[SampleScore, ...]:
    """The single samples, from the onset on, that stand out most."""
    calm = sorted(score.loss for score in scores if score.step < onset and math.isfinite(score.loss))
    if not calm:
        return ()
    middle, scale = _middle_and_scale(calm)
    return tuple(s for s in scores if s.step >= onset and not abs(s.loss - middle) <= _SEVERAL_Z * scale)


def _stands_out(zs: Sequence[float]) -> bool:
    if not all(map(math.isfinite, zs)):
        return True
    mean = sum(zs) / len(zs) * math.sqrt(len(zs))
    far = sum(abs(z) > _SEVERAL_Z for z in zs)
    return abs(mean) > _MEAN_Z or far >= _SEVERAL or max(map(abs, zs)) > _SAMPLE_Z


def _middle_and_scale(calm: Sequence[float]) -> tuple[float, float]:
    middle = calm[len(calm) // 2]
    apart = sorted(abs(loss - middle) for loss in calm)
    return middle, max(1.4826 * apart[len(apart) // 2], _SAMPLE_FLOOR * abs(middle))


def _log_ratio(value: float, base: float) -> float:
    return math.log(max(value, 1e-30) / max(base, 1e-30))
