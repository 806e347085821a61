"""From the proxies' winner to the target's values: pure functions, each value with its reason, and what is assumed.

- learning rate: mu-parametrisation carries it across width; at most half of the edge that the fit expects there
- beta2: by token half-life, beta2' = beta2^(B'/B), within [0.9, 0.999]
- warm-up: in tokens, and at least 1/(1 - beta2) steps, until which Adam's second moment is mostly start value
- clip: the number, told as the percentile of the norms that it was; a winner that follows a percentile leaves it alone
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stormsail.tuning.edge import SAFETY, Edge, EdgeFit
from stormsail.tuning.space import Cell

BETA2_RANGE = (0.9, 0.999)
_LONGEST_WARMUP = 0.5


@dataclass(frozen=True, slots=True)
class Value:
    """One key of the target.

    Attributes:
        key: Dotted.
        value: What to write.
        why: Where it comes from, in one line.
    """

    key: str
    value: float | int | None
    why: str


@dataclass(frozen=True, slots=True)
class Handover:
    """What the target gets.

    Attributes:
        values: Keys to set.
        assumptions: What nobody has checked.
    """

    values: tuple[Value, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What the winner was measured on.

    Attributes:
        cell: The winner.
        lr: Its best learning rate.
        steps: Steps of the largest proxy's trials.
        tokens_per_step: Of the largest proxy.
        width: Of the largest proxy, or None for a model of the user's own.
        clip_rate: Share of steps that were clipped, over all of the winner's trials.
        edge: Where the largest proxy's stable band ends.
        fit: Drift of the edge over the widths, or None.
        parametrisation: `mup` or `standard`.
    """

    cell: Cell
    lr: float
    steps: int
    tokens_per_step: int
    width: int | None
    clip_rate: float
    edge: Edge
    fit: EdgeFit | None
    parametrisation: str


@dataclass(frozen=True, slots=True)
class Goal:
    """What the target is.

    Attributes:
        steps: Its steps.
        tokens_per_step: Of its global batch.
        width: Its width, or None for a model of the user's own.
    """

    steps: int
    tokens_per_step: int
    width: int | None


def hand_over(source: Source, goal: Goal) -> Handover:
    """Work the target's values out."""
    beta2 = _beta2(source, goal)
    assert isinstance(beta2.value, float)  # noqa: S101 - for the type checker
    values = (_lr(source, goal), beta2, *_clip(source), _warmup(source, goal, beta2.value))
    return Handover(values, tuple(_assumptions(source, goal)))


def beta2_for_batch(beta2: float, tokens: int, new_tokens: int) -> float:
    """The decay rate whose half-life in tokens is the same at another batch: beta2^(B'/B), within [0.9, 0.999]."""
    return float(min(max(beta2 ** (new_tokens / tokens), BETA2_RANGE[0]), BETA2_RANGE[1]))


def warmup_in_steps(tokens: float, *, tokens_per_step: int, beta2: float, steps: int) -> int:
    """A warm-up of so many tokens, at least 1/(1 - beta2) steps and at most half of the run."""
    least = math.ceil(round(1.0 / (1.0 - beta2), 6))
    wanted = max(math.ceil(tokens / tokens_per_step), least)
    return max(0, min(wanted, int(_LONGEST_WARMUP * steps)))


def _lr(source: Source, goal: Goal) -> Value:
    width = goal.width
    limit = None if source.fit is None or width is None else SAFETY * source.fit.at(width)
    if limit is None and source.edge.lr is not None:
        limit = SAFETY * source.edge.lr
    if limit is not None and source.lr > limit:
        return Value(
            "optimizer.lr",
            _short(limit),
            f"half of the edge expected here; the best on the proxy was {source.lr:g}",
        )
    return Value("optimizer.lr", _short(source.lr), "best of the winner on the largest proxy")


def _beta2(source: Source, goal: Goal) -> Value:
    cell = source.cell
    value = beta2_for_batch(cell.beta2, source.tokens_per_step, goal.tokens_per_step)
    why = (
        f"{cell.beta2:g} on the proxy; same half-life in tokens at {goal.tokens_per_step:,} tokens a step "
        f"(proxy: {source.tokens_per_step:,})"
    )
    at_end = value in BETA2_RANGE and source.tokens_per_step != goal.tokens_per_step
    return Value("optimizer.betas.1", round(value, 6), why + (", at the end of the allowed range" if at_end else ""))


def _clip(source: Source) -> tuple[Value, ...]:
    """The threshold; none for a winner that follows a percentile, as no number that it saw is the target's."""
    cell = source.cell
    if cell.clip_percentile is not None:
        return ()
    if cell.clip_norm is None:
        return (Value("train.clip_norm", None, "the winner does not clip"),)
    percentile = 100.0 * (1.0 - source.clip_rate)
    why = f"about the {percentile:.0f}th percentile of the proxies' norms; check the clip rate of the first 1,000 steps"
    return (Value("train.clip_norm", cell.clip_norm, why),)


def _warmup(source: Source, goal: Goal, beta2: float) -> Value:
    tokens = source.cell.warmup * source.steps * source.tokens_per_step
    steps = warmup_in_steps(tokens, tokens_per_step=goal.tokens_per_step, beta2=beta2, steps=goal.steps)
    return Value("schedule.warmup_steps", steps, f"{tokens:,.0f} tokens, and at least 1/(1 - beta2) steps")


def _assumptions(source: Source, goal: Goal) -> list[str]:
    found = ["Depth, batch size, length of training, weight decay and data are taken to leave the stable band alone."]
    if source.parametrisation == "standard":
        found.append("The learning rate is carried over without mu-parametrisation: it holds for this width only.")
    elif source.width and goal.width:
        fit = source.fit
        drift = "one width, so no drift is known" if fit is None or fit.widths < 2 else f"edge ~ width^{fit.slope:.2f}"  # noqa: PLR2004
        found.append(f"The edge at width {goal.width} follows from {drift}; the largest proxy has {source.width}.")
    if source.cell.clip_percentile is not None:
        found.append(
            f"The winner clips at the {source.cell.clip_percentile:g}th percentile of the norms, which no fixed number is: "
            "train.clip_norm is left as it is, and was not tried."
        )
    if source.edge.open_end:
        found.append("The largest learning rate of the grid was still stable: the true edge lies higher.")
    if source.edge.lr is None:
        found.append("No learning rate was stable with every seed on the largest proxy: the band has no known edge.")
    found.append("A proxy never proves that a large run is stable; it shows which settings are more fragile.")
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}")
