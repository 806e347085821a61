"""From the proxies' winner to the target's values: pure functions, each value with its reason, and what is assumed.

- learning rate: mu-parametrisation carries it across width; at most half of the edge that the fit expects there, and of
  the one that was seen on the largest proxy
- beta2: by token half-life, beta2' = beta2^(B'/B), within [0.9, 0.999]
- warm-up: in tokens, and at least 1/(1 - beta2) steps, until which Adam's second moment is mostly start value
- clip: the number, told as the percentile of the norms that it was at the best learning rate; a winner that follows a percentile leaves it alone
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stormsail.tuning.edge import LEAST_FOR_SLOPE, SAFETY, Edge, EdgeFit
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
        clip_rate: Share of steps that were clipped at that learning rate on the largest proxy.
        edge: Where the largest proxy's stable band ends.
        fit: Drift of the edge over the widths, or None where no width's edge is known.
        parametrisation: `mup` or `standard`.
        below: Widths whose edge lies below the grid; the fit leaves them out.
        batches: Tokens of one step, of every proxy.
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
    below: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()


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
    return min(max(_same_half_life(beta2, tokens, new_tokens), BETA2_RANGE[0]), BETA2_RANGE[1])


def _same_half_life(beta2: float, tokens: int, new_tokens: int) -> float:
    return float(beta2 ** (new_tokens / tokens))


def warmup_in_steps(tokens: float, *, tokens_per_step: int, beta2: float, steps: int) -> int:
    """A warm-up of so many tokens, at least 1/(1 - beta2) steps and at most half of the run."""
    return min(_wanted_warmup(tokens, tokens_per_step, beta2), _longest_warmup(steps))


def _wanted_warmup(tokens: float, tokens_per_step: int, beta2: float) -> int:
    return max(math.ceil(tokens / tokens_per_step), math.ceil(round(1.0 / (1.0 - beta2), 6)))


def _longest_warmup(steps: int) -> int:
    return int(_LONGEST_WARMUP * steps)


def _lr(source: Source, goal: Goal) -> Value:
    edges = []
    if source.edge.lr is not None:
        edges.append((source.edge.lr, "the edge seen on the largest proxy"))
    elif source.edge.unstable is not None:
        edges.append((source.edge.unstable, "the smallest rate of the grid, which failed on the largest proxy"))
    if source.fit is not None and goal.width is not None:
        edges.append((source.fit.safe(goal.width), "the edge expected here"))
    edge, where = min(edges, default=(math.inf, ""))
    if source.lr > SAFETY * edge:
        why = f"half of {where}; the best on the proxy was {source.lr:g}"
        return Value("optimizer.lr", _short(SAFETY * edge), why)
    return Value("optimizer.lr", _short(source.lr), "best of the winner on the largest proxy")


def _beta2(source: Source, goal: Goal) -> Value:
    cell = source.cell
    value = beta2_for_batch(cell.beta2, source.tokens_per_step, goal.tokens_per_step)
    why = (
        f"{cell.beta2:g} on the proxy; same half-life in tokens at {goal.tokens_per_step:,} tokens a step "
        f"(proxy: {source.tokens_per_step:,})"
    )
    rule = _same_half_life(cell.beta2, source.tokens_per_step, goal.tokens_per_step)
    cut = f"; that would be {rule:.6g}, outside of {BETA2_RANGE[0]} to {BETA2_RANGE[1]}" if value != rule else ""
    return Value("optimizer.betas.1", round(value, 6), why + cut)


def _clip(source: Source) -> tuple[Value, ...]:
    """The threshold; none for a winner that follows a percentile, as no number that it saw is the target's."""
    cell = source.cell
    if cell.clip_percentile is not None:
        return ()
    if cell.clip_norm is None:
        return (Value("train.clip_norm", None, "the winner does not clip"),)
    percentile = 100.0 * (1.0 - source.clip_rate)
    why = (
        f"about the {percentile:.0f}th percentile of the largest proxy's norms at its best learning rate; "
        "check the clip rate of the first 1,000 steps"
    )
    return (Value("train.clip_norm", cell.clip_norm, why),)


def _warmup(source: Source, goal: Goal, beta2: float) -> Value:
    tokens = source.cell.warmup * source.steps * source.tokens_per_step
    steps = warmup_in_steps(tokens, tokens_per_step=goal.tokens_per_step, beta2=beta2, steps=goal.steps)
    wanted = _wanted_warmup(tokens, goal.tokens_per_step, beta2)
    cut = f"; that would be {wanted:,} steps, cut to half of the run" if steps < wanted else ""
    return Value("schedule.warmup_steps", steps, f"{tokens:,.0f} tokens, and at least 1/(1 - beta2) steps{cut}")


def _assumptions(source: Source, goal: Goal) -> list[str]:
    found = ["Depth, batch size, length of training, weight decay and data are taken to leave the stable band alone."]
    if source.parametrisation == "standard":
        found.append("The learning rate is carried over without mu-parametrisation: it holds for this width only.")
    elif source.width and goal.width:
        found.append(
            f"The edge at width {goal.width} {_drift(source.fit, goal.width)}; the largest proxy has {source.width}."
        )
    if source.below:
        widths = ", ".join(str(width) for width in source.below)
        found.append(f"No learning rate of the grid was stable with every seed at width {widths}: no edge counts it.")
    if len(set(source.batches)) > 1:
        steps = ", ".join(f"{tokens:,}" for tokens in source.batches)
        found.append(
            f"The proxies have {steps} tokens a step: a beta2 or a warm-up is not the same in tokens on each, and the "
            "largest proxy's is carried over."
        )
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


def _drift(fit: EdgeFit | None, width: int) -> str:
    if fit is None:
        return "is not known, as no proxy's stable band ends within the grid"
    if not fit.tells_drift:
        return f"is taken to be the smallest one seen: {fit.widths} of the widths that it takes for a drift, {LEAST_FOR_SLOPE}"
    likely, cautious = fit.likely, fit.cautious
    return (
        f"is expected at {likely.at(width):.3g} by the least drift that explains what was seen, width^{likely.slope:+.2f}, "
        f"and at {cautious.at(width):.3g} by least squares, width^{cautious.slope:+.2f}, over {fit.widths} widths"
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")
