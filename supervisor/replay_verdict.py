"""What an FP32 replay has shown: the same steps in both precisions, compared (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from stormsail.platform.messages import StepRow


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """The comparison.

    Attributes:
        verdict: One sentence.
        steps: Steps that both passes hold.
        anomalous: Steps that were dropped or flagged in the run's precision.
        healed: Those of them that FP32 did without.
        fp32_loss: Mean loss of the common steps in FP32, or None.
        bf16_loss: The same in the run's precision, or None.
    """

    verdict: str
    steps: int
    anomalous: tuple[int, ...]
    healed: tuple[int, ...]
    fp32_loss: float | None
    bf16_loss: float | None


def compare(before: Mapping[int, StepRow], replayed: Mapping[int, StepRow]) -> ReplayVerdict:
    """Compare a replay with the pass before it.

    Args:
        before: Rows of the pass that went wrong, by step.
        replayed: Rows of the FP32 pass, by step.
    """
    common = sorted(set(before) & set(replayed))
    anomalous = tuple(step for step in common if _is_anomalous(before[step]))
    healed = tuple(step for step in anomalous if not _is_anomalous(replayed[step]))
    return ReplayVerdict(
        verdict=_sentence(anomalous, healed),
        steps=len(common),
        anomalous=anomalous,
        healed=healed,
        fp32_loss=_mean_loss(replayed, common),
        bf16_loss=_mean_loss(before, common),
    )


def _is_anomalous(row: StepRow) -> bool:
    return row.outcome == "dropped" or row.flagged or not math.isfinite(row.loss)


def _sentence(anomalous: tuple[int, ...], healed: tuple[int, ...]) -> str:
    if not anomalous:
        return "no anomalous step was computed in both precisions"
    if healed == anomalous:
        return f"numerics: {_name(anomalous)} went wrong in the run's precision and not in FP32"
    left = tuple(step for step in anomalous if step not in healed)
    return f"not numerics alone: {_name(left)} went wrong in FP32 too"


def _name(steps: tuple[int, ...]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _mean_loss(rows: Mapping[int, StepRow], steps: list[int]) -> float | None:
    losses = [rows[step].loss for step in steps if math.isfinite(rows[step].loss)]
    return statistics.fmean(losses) if losses else None
