"""The spike rules of the articles that Stormsail began from, as they are written there. Pure.

They are here to be measured beside the default, not to be relied on; each says what is wrong with it. A value that
is not finite is passed over: every comparison with NaN is false, so these rules read it as normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, mean_and_sigma, push


@dataclass(frozen=True, slots=True)
class WindowState:
    """The last losses, oldest first."""

    losses: Values = ()


@dataclass(frozen=True)
class SigmaSpike(Rule[WindowState]):
    """Spike: (loss - mean) / sigma > 10 over the recent window, which holds the value itself.

    Cannot fire: with n values, one of them is at most (n - 1) / sqrt(n) standard deviations from their mean, which
    is 9.9 for 100. Sigma is also widened by earlier spikes and by the slope of early training.
    """

    state_type: ClassVar[type[object]] = WindowState
    name: ClassVar[str] = "article-z10"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "sigma"
    source: ClassVar[str] = "articles"
    includes_itself: ClassVar[bool] = True

    z: float = limit(10.0, "sigma", "a loss further above the mean is a spike")
    window: int = count(100, "rows", "losses in the window")
    least: int = count(20, "rows", "losses needed before the rule speaks")

    def _observe(self, state: WindowState, row: Row) -> tuple[WindowState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        after = WindowState(push(state.losses, row.loss, self.window))
        judged = after.losses if self.includes_itself else state.losses
        if len(judged) < self.least:
            return after, None
        middle, sigma = mean_and_sigma(judged)
        z = (row.loss - middle) / max(sigma, 1e-9)
        if z <= self.z:
            return after, None
        return after, self.say(
            z, f"loss {row.loss:.4g} is {z:.1f} sigma above its mean {middle:.4g} (limit {self.z:g})"
        )


class SigmaSpikeExcluded(SigmaSpike):
    """The same with the current value left out of mean and sigma.

    It can fire, but finds only what is extreme: sigma still carries earlier spikes and the descent.
    """

    name: ClassVar[str] = "article-z10-excluded"
    includes_itself: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class BestState:
    """The lowest loss so far; None before the first."""

    best: float | None = None


@dataclass(frozen=True)
class FiveTimesBest(Rule[BestState]):
    """Spike: loss > 5 x the best so far.

    With a best of 2 to 3 nats that is 10 to 15, above the loss of guessing (ln of the vocabulary, about 10.8):
    real spikes peak at 1.8 to 3.1 times the best. A single lucky batch moves the best for ever.
    """

    state_type: ClassVar[type[object]] = BestState
    name: ClassVar[str] = "article-5x-best"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "x best"
    source: ClassVar[str] = "articles"

    factor: float = limit(5.0, "x best loss", "a higher loss is a spike")

    def _observe(self, state: BestState, row: Row) -> tuple[BestState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        if state.best is None or row.loss < state.best:
            return BestState(row.loss), None
        times = row.loss / state.best if state.best > 0.0 else 0.0
        if times <= self.factor:
            return state, None
        return state, self.say(times, f"loss {row.loss:.4g} is {times:.1f} x the best {state.best:.4g}")


@dataclass(frozen=True, slots=True)
class AverageState:
    """An exponential average; None before the first value."""

    average: float | None = None


@dataclass(frozen=True)
class ThreeTimesAverage(Rule[AverageState]):
    """Spike: loss > 3 x its exponential average, or gradient norm > 5.

    The average takes in the spike itself, three times the level is far beyond most real spikes, and a fixed norm
    knows nothing of the model: the first steps of most runs are above 5, the worst of others never reaches it.
    """

    state_type: ClassVar[type[object]] = AverageState
    name: ClassVar[str] = "article-3x-ema"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "x limit"
    source: ClassVar[str] = "articles"

    factor: float = limit(3.0, "x average loss", "a higher loss is a spike")
    norm: float = limit(5.0, "gradient norm", "a higher norm is a spike")
    decay: float = limit(0.99, "per row", "share of the average that stays")

    def _observe(self, state: AverageState, row: Row) -> tuple[AverageState, Finding | None]:
        average = row.loss if state.average is None else state.average
        finding: Finding | None = None
        if row.loss > self.factor * average:
            finding = self.say(
                row.loss / (self.factor * average),
                f"loss {row.loss:.4g} is above {self.factor:g} x its average {average:.4g}",
            )
        elif row.grad_norm is not None and self.norm < row.grad_norm < math.inf:
            finding = self.say(row.grad_norm / self.norm, f"gradient norm {row.grad_norm:.4g} is above {self.norm:g}")
        if not math.isfinite(row.loss):
            return state, finding if finding and math.isfinite(finding.severity) else None
        return AverageState(self.decay * average + (1.0 - self.decay) * row.loss), finding


@dataclass(frozen=True)
class NormThousand(Rule[AverageState]):
    """Explosion: gradient norm > 1000 x max(1, its exponential average).

    Wrong by three orders of magnitude: the worst norm of a published 176B spike was 960 where 0.2 was normal. The
    spike enters the average that it is judged by, and a norm of NaN reads as normal.
    """

    state_type: ClassVar[type[object]] = AverageState
    name: ClassVar[str] = "article-norm-1000"
    kind: ClassVar[Kind] = Kind.GRADIENT
    unit: ClassVar[str] = "x max(1, average)"
    source: ClassVar[str] = "articles"

    factor: float = limit(1000.0, "x max(1, average norm)", "a higher norm is an explosion")
    decay: float = limit(0.99, "per row", "share of the average that stays")

    def _observe(self, state: AverageState, row: Row) -> tuple[AverageState, Finding | None]:
        norm = row.grad_norm
        if norm is None or not math.isfinite(norm):
            return state, None
        average = norm if state.average is None else state.average
        after = replace(state, average=self.decay * average + (1.0 - self.decay) * norm)
        times = norm / max(1.0, average)
        if times <= self.factor:
            return after, None
        return after, self.say(times, f"gradient norm {norm:.4g} is {times:.0f} x max(1, average {average:.4g})")
