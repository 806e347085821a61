"""Spike rules that other projects run, by their published constants. Pure.

They are here to be measured beside the default. Each was made for an action of its own (skip one update, clip,
page somebody, stop the job); what is counted here is how often it would have acted. A value that is not finite is
passed over unless the rule names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, mean, mean_and_sigma, median_and_scatter, push, ratio


@dataclass(frozen=True, slots=True)
class TwoWindows:
    """The last losses and the last gradient norms (or their logarithms), oldest first."""

    losses: Values = ()
    norms: Values = ()


@dataclass(frozen=True)
class OlmoSkipStep(Rule[TwoWindows]):
    """OLMo-core's SkipStep: loss or gradient norm > mean + 6 sigma of the 128 values before (64 are needed).

    Skipped values still enter the window, and the rule knows no persistence: it skips about 20 healthy updates in
    10,000, which is cheap as a skip and ruinous as a rollback.
    """

    state_type: ClassVar[type[object]] = TwoWindows
    name: ClassVar[str] = "olmo-skipstep"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "sigma"
    source: ClassVar[str] = "OLMo-core SkipStepOptimizer; Levanter has the same constants"
    reads_norm: ClassVar[bool] = True

    z: float = limit(6.0, "sigma", "a value further above the mean is skipped")
    window: int = count(128, "rows", "values in the window, the current one left out")
    least: int = count(64, "rows", "values needed before the rule speaks")

    def _observe(self, state: TwoWindows, row: Row) -> tuple[TwoWindows, Finding | None]:
        loss_z = self._z(state.losses, row.loss)
        norm = row.grad_norm if self.reads_norm else None
        norm_z = 0.0 if norm is None else self._z(state.norms, norm)
        after = TwoWindows(
            _push_finite(state.losses, row.loss, self.window), _push_finite(state.norms, norm, self.window)
        )
        worst = max(loss_z, norm_z)
        if worst <= self.z:
            return after, None
        what = "loss" if loss_z >= norm_z else "gradient norm"
        return after, self.say(worst, f"{what} {worst:.1f} sigma above the mean of the last {self.window}")

    def _z(self, window: Values, value: float) -> float:
        if len(window) < self.least or not math.isfinite(value):
            return 0.0
        middle, sigma = mean_and_sigma(window, ddof=1)
        return (value - middle) / max(sigma, 1e-9)


class OlmoSkipStepLoss(OlmoSkipStep):
    """The same reading the loss alone."""

    name: ClassVar[str] = "olmo-skipstep-loss"
    reads_norm: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class OneWindow:
    """The last losses, oldest first."""

    losses: Values = ()


@dataclass(frozen=True)
class OlmoSpikeScore(Rule[OneWindow]):
    """OLMo 2's spike score: a loss at least 7 sigma from the mean of the last 1000.

    Meant as the share of such values in a finished run, to compare settings; as an alarm it is late and knows no
    persistence.
    """

    state_type: ClassVar[type[object]] = OneWindow
    name: ClassVar[str] = "olmo2-spike-score"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "sigma"
    source: ClassVar[str] = "OLMo 2 report"

    z: float = limit(7.0, "sigma", "a value this far from the mean counts")
    window: int = count(1000, "rows", "values in the window, the current one left out")
    least: int = count(100, "rows", "values needed before the rule speaks")

    def _observe(self, state: OneWindow, row: Row) -> tuple[OneWindow, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        after = OneWindow(push(state.losses, row.loss, self.window))
        if len(state.losses) < self.least:
            return after, None
        middle, sigma = mean_and_sigma(state.losses)
        z = abs(row.loss - middle) / max(sigma, 1e-9)
        if z < self.z:
            return after, None
        return after, self.say(z, f"loss {z:.1f} sigma from the mean of the last {len(state.losses)}")


@dataclass(frozen=True, slots=True)
class FoundryState:
    """The last losses, how many of them in a row were outliers, and the cap learned from the first window."""

    losses: Values = ()
    in_a_row: int = 0
    cap: float | None = None


@dataclass(frozen=True)
class FoundryKillLossSpike(Rule[FoundryState]):
    """LLM-Foundry's KillLossSpike: loss at least 2 x the window's mean 5 times in a row, or half a window above a cap.

    The cap is the highest loss of the first window, 10 at most. Made to stop a run that is lost: it sees
    divergence only, since real spikes rarely stay at twice the mean.
    """

    state_type: ClassVar[type[object]] = FoundryState
    name: ClassVar[str] = "foundry-2x-mean"
    kind: ClassVar[Kind] = Kind.DIVERGENCE
    unit: ClassVar[str] = "x mean"
    source: ClassVar[str] = "LLM-Foundry kill_loss_spike_callback"

    factor: float = limit(2.0, "x mean loss", "a loss this high is an outlier")
    patience: int = count(5, "rows", "outliers in a row that make an alarm")
    window: int = count(100, "rows", "losses in the window")
    highest_cap: float = limit(10.0, "nats", "the cap is never above this")

    def _observe(self, state: FoundryState, row: Row) -> tuple[FoundryState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        losses = push(state.losses, row.loss, self.window)
        if len(state.losses) < self.window:
            return FoundryState(losses), None
        cap = min(max(state.losses), self.highest_cap) if state.cap is None else state.cap
        times = ratio(row.loss, mean(state.losses))
        in_a_row = state.in_a_row + 1 if times >= self.factor else 0
        after = FoundryState(losses, in_a_row, cap)
        if in_a_row >= self.patience:
            return after, self.say(times, f"loss {times:.1f} x its mean, {in_a_row} times in a row")
        high = sum(loss > cap for loss in losses)
        if high > self.window // 2:
            return after, self.say(times, f"{high} of the last {self.window} losses are above the cap {cap:.3g}")
        return after, None


@dataclass(frozen=True, slots=True)
class FirstState:
    """Highest values among the first rows, and how many rows there were."""

    rows: int = 0
    loss: float = 0.0
    norm: float = 0.0


@dataclass(frozen=True)
class MegatronFirstHundred(Rule[FirstState]):
    """Megatron's rerun machine: loss or norm at least 10 x the highest of the first 100, or not finite.

    The first hundred losses are those of an untrained model, about 11 nats: ten times that is never reached.
    """

    state_type: ClassVar[type[object]] = FirstState
    name: ClassVar[str] = "megatron-10x-first100"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "x highest of the first"
    source: ClassVar[str] = "Megatron-LM rerun_state_machine"

    factor: float = limit(10.0, "x highest", "a value this high is unexpected")
    first: int = count(100, "rows", "rows whose highest value is the measure")

    def _observe(self, state: FirstState, row: Row) -> tuple[FirstState, Finding | None]:
        if not row.finite:
            return state, self.say(1.0, "loss or gradient norm is not finite")
        norm = row.grad_norm or 0.0
        if state.rows < self.first:
            return FirstState(state.rows + 1, max(state.loss, row.loss), max(state.norm, norm)), None
        times = max(ratio(row.loss, state.loss), ratio(norm, state.norm))
        if times < self.factor:
            return state, None
        return state, self.say(times, f"{times:.1f} x the highest of the first {self.first} rows")


@dataclass(frozen=True)
class ByteRobustJump(Rule[TwoWindows]):
    """ByteRobust: a 5-fold jump of loss or gradient norm, or a value that is not finite.

    The report does not say against what; here it is the mean of the 100 values before.
    """

    state_type: ClassVar[type[object]] = TwoWindows
    name: ClassVar[str] = "byterobust-5x"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "x mean"
    source: ClassVar[str] = "ByteRobust report"

    factor: float = limit(5.0, "x mean", "a value above this is a jump")
    window: int = count(100, "rows", "values in the window, the current one left out")
    least: int = count(20, "rows", "values needed before the rule speaks")

    def _observe(self, state: TwoWindows, row: Row) -> tuple[TwoWindows, Finding | None]:
        if not row.finite:
            return state, self.say(1.0, "loss or gradient norm is not finite")
        after = TwoWindows(
            push(state.losses, row.loss, self.window), _push_finite(state.norms, row.grad_norm, self.window)
        )
        if len(state.losses) < self.least:
            return after, None
        norm_times = ratio(row.grad_norm or 0.0, mean(state.norms)) if state.norms else 0.0
        times = max(ratio(row.loss, mean(state.losses)), norm_times)
        if times <= self.factor:
            return after, None
        return after, self.say(times, f"{times:.1f} x the mean of the last {self.window}")


@dataclass(frozen=True)
class RobustMonitor(Rule[TwoWindows]):
    """The alert of a public run's monitor: robust z of log loss > 8 over 100, or > 6 in loss and norm at once.

    Thresholds were set from six healthy runs of one project. The better of the published rules, but one toxic
    batch is enough for it, and what is flagged enters its own window.
    """

    state_type: ClassVar[type[object]] = TwoWindows
    name: ClassVar[str] = "robust-z-monitor"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "robust sigma"
    source: ClassVar[str] = "run-health monitor of a public training run"

    z_alone: float = limit(8.0, "robust sigma", "a loss beyond this is enough")
    z_both: float = limit(6.0, "robust sigma", "loss and norm beyond this at one row are enough")
    window: int = count(100, "rows", "values in the window, the current one left out")
    least: int = count(20, "rows", "values needed before the rule speaks")

    def _observe(self, state: TwoWindows, row: Row) -> tuple[TwoWindows, Finding | None]:
        log_loss = math.log(row.loss) if 0.0 < row.loss < math.inf else None
        loss_z, norm_z = self._z(state.losses, log_loss), self._z(state.norms, row.log_norm)
        after = TwoWindows(
            _push_finite(state.losses, log_loss, self.window), _push_finite(state.norms, row.log_norm, self.window)
        )
        if loss_z > self.z_alone:
            return after, self.say(loss_z, f"log loss z {loss_z:.1f} (limit {self.z_alone:g})")
        if min(loss_z, norm_z) > self.z_both:
            return after, self.say(loss_z, f"log loss z {loss_z:.1f} and log norm z {norm_z:.1f} at one row")
        return after, None

    def _z(self, window: Values, value: float | None) -> float:
        if value is None or len(window) < self.least:
            return 0.0
        middle, scatter = median_and_scatter(window)
        return (value - middle) / max(scatter, 1e-4)


@dataclass(frozen=True, slots=True)
class ZclipState:
    """Average and variance of the (clipped) gradient norm, and the norms of the warm-up."""

    average: float | None = None
    variance: float = 0.0
    warmup: Values = ()


@dataclass(frozen=True)
class ZclipTouch(Rule[ZclipState]):
    """ZClip: a norm more than 2.5 sigma above its exponential average is clipped; a finding is one clipped update.

    A clip rule, no alarm: it touches about 4 % of healthy updates by design.
    """

    state_type: ClassVar[type[object]] = ZclipState
    name: ClassVar[str] = "zclip-touch"
    kind: ClassVar[Kind] = Kind.GRADIENT
    unit: ClassVar[str] = "sigma"
    source: ClassVar[str] = "ZClip"

    z: float = limit(2.5, "sigma", "a norm further above its average is clipped")
    decay: float = limit(0.97, "per row", "share of the averages that stays")
    warmup: int = count(25, "rows", "rows that begin the averages")

    def _observe(self, state: ZclipState, row: Row) -> tuple[ZclipState, Finding | None]:
        norm = row.grad_norm
        if norm is None or not math.isfinite(norm):
            return state, None
        if state.average is None:
            first = push(state.warmup, norm, self.warmup)
            if len(first) < self.warmup:
                return ZclipState(warmup=first), None
            middle, sigma = mean_and_sigma(first)
            return ZclipState(middle, sigma * sigma), None
        sigma = max(math.sqrt(state.variance), 1e-9)
        z = (norm - state.average) / sigma
        touched = z > self.z
        fed = state.average + self.z * self.z / z * sigma if touched else norm
        average = self.decay * state.average + (1.0 - self.decay) * fed
        variance = self.decay * state.variance + (1.0 - self.decay) * (fed - average) ** 2
        finding = self.say(z, f"gradient norm {z:.1f} sigma above its average: clipped") if touched else None
        return ZclipState(average, variance), finding


@dataclass(frozen=True, slots=True)
class ForecastState:
    """Level, variance of the forecast's error, and rows seen."""

    level: float = 0.0
    variance: float = 0.0
    rows: int = 0


@dataclass(frozen=True)
class ForecastThreeSigma(Rule[ForecastState]):
    """A loss outside the 3-sigma band of a forecast; an exponential average stands in for the articles' LSTM.

    Three sigma is the trouble, not the forecaster: about 50 false episodes in 10,000 healthy rows.
    """

    state_type: ClassVar[type[object]] = ForecastState
    name: ClassVar[str] = "forecast-3sigma"
    kind: ClassVar[Kind] = Kind.SPIKE
    unit: ClassVar[str] = "sigma"
    source: ClassVar[str] = "articles (LSTM band)"

    z: float = limit(3.0, "sigma", "a loss further above the forecast is an alarm")
    decay: float = limit(0.95, "per row", "share of the averages that stays")
    least: int = count(50, "rows", "rows before the rule speaks")

    def _observe(self, state: ForecastState, row: Row) -> tuple[ForecastState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        if state.rows == 0:
            return ForecastState(row.loss, 0.0, 1), None
        error = row.loss - state.level
        z = error / max(math.sqrt(state.variance), 1e-9)
        after = ForecastState(
            state.level + (1.0 - self.decay) * error,
            self.decay * state.variance + (1.0 - self.decay) * error * error,
            min(state.rows + 1, self.least),
        )
        if state.rows < self.least or z <= self.z:
            return after, None
        return after, self.say(z, f"loss {z:.1f} sigma above its forecast {state.level:.4g}")


def _push_finite(window: Values, value: float | None, size: int) -> Values:
    return window if value is None or not math.isfinite(value) else push(window, value, size)
