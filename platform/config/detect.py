"""When the numbers of a run are called trouble: dropped updates, the detectors' preset, and each threshold that may differ.

A threshold that is null is that of the preset. The rules themselves, and what each preset sets, are shown by
`stormsail backtest --list`, what is watched beside them stands in `workers/detect/beside.py`; tests keep the lists alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from stormsail.platform.config.section import Count, Fraction, Positive, Section

Limit = Annotated[float, Field(gt=0.0)] | None
Rows = Positive | None

WITHOUT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "quiet": ("oscillation",),
        "article": (
            "explosion",
            "spike",
            "resume",
            "level_shift",
            "slow_divergence",
            "norm_precursor",
            "oscillation",
        ),
    }
)
"""Sections whose rule a preset does not have, so that nothing set there has an effect."""


class NonfiniteSection(Section):
    """Non-finite gradients are never applied; this says how many dropped updates are too many."""

    patience: Positive = Field(3, description="dropped updates in a row that open an incident")
    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.3,
        description="share of dropped updates among the last 20 or so steps beyond which they do so too, from the tenth on; "
        "1: never",
    )


class ExplosionLimits(Section):
    """Two steps out of range by an order of magnitude."""

    z: Limit = Field(None, description="a loss beyond this is high (robust sigma)")
    norm_ratio: Limit = Field(None, description="a norm beyond this is out of range (x median norm)")
    rise: Limit = Field(None, description="least rise of the loss beside such a norm (nats)")
    loss_ratio: Limit = Field(None, description="a loss beyond this, twice, needs no norm (x level)")
    rows: Rows = Field(None, description="steps out of range in a row that are an incident; null is 4 in a live run")
    window: Rows = Field(None, description="ordinary steps that say what is normal")
    least: Rows = Field(None, description="ordinary steps needed before the rule speaks")
    forget: Rows = Field(None, description="steps out of range, in a row, that become the new normal")


class SpikeLimits(Section):
    """A robust residual of loss and gradient norm, with persistence."""

    z: Limit = Field(None, description="a step beyond this is flagged (robust sigma)")
    severe_z: Limit = Field(None, description="a loss beyond this gets no grace (robust sigma)")
    norm_ratio: Limit = Field(None, description="a norm beyond this gets no grace (x median norm)")
    grace_steps: Count | None = Field(None, description="what a persistent, mild spike gets to heal by itself (steps)")
    least_rise: Limit = Field(None, description="a mild spike below this is no incident (nats)")
    needed: Rows = Field(None, description="flagged steps that make a spike persistent")
    of: Rows = Field(None, description="last steps among which they are counted")
    window: Rows = Field(None, description="accepted residuals that say what is normal")
    least: Rows = Field(None, description="accepted steps needed before the rule speaks")
    rebase_steps: Rows = Field(None, description="a spike that lasts longer is the new normal (steps)")


class ResumeLimits(Section):
    """The first steps after a restart against those before."""

    rise: Limit = Field(None, description="a loss further above the level before is out of range (nats)")
    z: Limit = Field(None, description="and this far against the scatter before (robust sigma)")
    norm_ratio: Limit = Field(
        None, description="beside a norm beyond this, two such steps are an incident (x median norm before)"
    )
    severe_ratio: Limit = Field(
        None, description="beside a norm beyond this, one step is enough (x median norm before)"
    )
    rows: Rows = Field(None, description="steps after a restart that are judged")
    window: Rows = Field(None, description="steps before it that say what is normal")
    least: Rows = Field(None, description="steps before it that are needed")


class LevelShiftLimits(Section):
    """A plateau that jumps."""

    rise: Limit = Field(None, description="a shift beyond this is an incident (nats)")
    watch_rise: Limit = Field(None, description="a shift beyond this is a watch (nats)")
    z: Limit = Field(None, description="least shift against the scatter (standard errors)")
    after: Rows = Field(None, description="steps of the new level")
    before: Rows = Field(None, description="steps of the old level")


class SlowDivergenceLimits(Section):
    """A loss that climbs away from its lowest."""

    margin: Limit = Field(None, description="least rise that is an incident (nats)")
    share: Limit = Field(None, description="least rise as a share of the minimum (of the level)")
    sigmas: Limit = Field(None, description="least rise against the noise (sigma of the average)")
    fast_steps: Rows = Field(None, description="time constant of the fast average (steps)")
    memory_steps: Rows = Field(None, description="how far back the minimum reaches (steps)")
    least: Rows = Field(None, description="steps before the rule speaks")
    stay: Rows = Field(None, description="how long the rise must stay (steps in a row)")


class NormPrecursorLimits(Section):
    """A gradient norm that leaves its range; watch only."""

    z: Limit = Field(None, description="a norm beyond this and the ratio is flagged (robust sigma of the log norm)")
    ratio: Limit = Field(None, description="a norm beyond this and the score is flagged (x median norm)")
    window: Rows = Field(None, description="accepted steps that say what is normal")
    least: Rows = Field(None, description="accepted steps needed before the rule speaks")
    forget: Rows = Field(None, description="flags that become the new level (steps in a row)")


class OscillationLimits(Section):
    """A swing of the loss that grows; watch only."""

    correlation: Limit = Field(None, description="least autocorrelation at the period (correlation)")
    swing: Limit = Field(None, description="least standard deviation of the periodic part (of the level)")
    growth: Limit = Field(None, description="least growth against the least of the judgements before (x least swing)")
    window: Rows = Field(None, description="steps that are judged together")
    every: Rows = Field(None, description="steps between two judgements")
    data_period: Count | None = Field(
        None,
        description="period of the data's own order, left out with its multiples (steps); 0: none; null: one pass over "
        "the data",
    )


class RanksLimits(Section):
    """One rank against the others; a watch unless `incident_steps` is set."""

    z: Annotated[float, Field(gt=0.0)] = Field(
        8.0, description="deviation from its own share that is flagged (robust sigma)"
    )
    watch_steps: Positive = Field(3, description="flagged steps in a row that are a watch")
    incident_steps: Count = Field(0, description="flagged steps in a row that are an incident; 0: never")
    least: Positive = Field(50, description="steps needed before a rank is judged")
    slow_ratio: Annotated[float, Field(gt=1.0)] = Field(
        1.3, description="a rank whose own work takes this much longer than the others' is slow (x their median)"
    )
    slow_share: Fraction = Field(0.7, description="share of the last 20 or so steps it must be slow in (straggler)")
    steady_ratio: Annotated[float, Field(gt=1.0)] = Field(
        1.1, description="so is one whose own work takes this much longer in the long mean (x their median)"
    )
    steady_steps: Annotated[int, Field(ge=50)] = Field(200, description="steps of the long mean")


class ForecastLimits(Section):
    """When a loss has left the forecast that was made of it; watch only."""

    z: Limit = Field(None, description="a loss beyond this lies outside (sigma of the forecast's band)")
    needed: Annotated[int, Field(ge=1, le=5)] | None = Field(
        None, description="of the last 5 judged losses, so many outside are a watch (steps)"
    )


class ContinuityLimits(Section):
    """The first losses after a load against those recorded, where another world need not repeat the bits."""

    tolerance: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None, description="a difference beyond this is an incident (x recorded loss)"
    )


class LayerLimits(Section):
    """Which layer groups an incident names."""

    ratio: Annotated[float, Field(gt=1.0)] | None = Field(
        None, description="a norm beyond this is out of the ordinary (x its level)"
    )
    least: Rows = Field(None, description="ordinary steps needed before a group is judged (steps)")


class StallLimits(Section):
    """A single step of one rank that is worth a line."""

    ratio: Annotated[float, Field(gt=1.0)] | None = Field(
        None, description="its own work beyond this (x median of the others)"
    )
    seconds: Limit = Field(None, description="and so much longer than theirs (s)")


class ThroughputLimits(Section):
    """A run that becomes slow as a whole; a line, never an incident."""

    collapsed: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None, description="below this the run has collapsed (x usual tokens per second)"
    )
    recovered: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="above this it has come back (x usual tokens per second)"
    )
    late: Rows = Field(None, description="last steps whose median rate is compared (steps)")
    usual: Rows = Field(None, description="steps whose median rate is usual (steps)")
    least: Rows = Field(None, description="steps needed before anything is usual (steps)")


class DetectSection(Section):
    """When the numbers of a run are called trouble, and what looking at them may cost."""

    preset: Literal["default", "sensitive", "quiet", "article"] = Field(
        "default", description="rules and thresholds: `sensitive` sees more and cries more often, `quiet` the reverse"
    )
    on_watch: Literal["clip", "skip", "report"] = Field(
        "clip",
        description="a gradient norm out of its range: `clip` to its median, `skip` the update, or only `report`",
    )
    sample_every: Positive = Field(10, description="least steps between two samples of the costly vitals")
    budget: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.01, description="share of a step that vitals and verdict may take; beyond it samples become rarer"
    )
    forecast: bool = Field(default=True, description="train a small forecast of the loss beside the run; watch only")
    explosion: ExplosionLimits = ExplosionLimits()
    spike: SpikeLimits = SpikeLimits()
    resume: ResumeLimits = ResumeLimits()
    level_shift: LevelShiftLimits = LevelShiftLimits()
    slow_divergence: SlowDivergenceLimits = SlowDivergenceLimits()
    norm_precursor: NormPrecursorLimits = NormPrecursorLimits()
    oscillation: OscillationLimits = OscillationLimits()
    ranks: RanksLimits = RanksLimits()
    stall: StallLimits = StallLimits()
    layers: LayerLimits = LayerLimits()
    forecast_limits: ForecastLimits = ForecastLimits()
    continuity: ContinuityLimits = ContinuityLimits()
    throughput: ThroughputLimits = ThroughputLimits()

    def without_effect(self) -> Iterator[str]:
        """Keys that are set though the preset has no rule that reads them."""
        for section in WITHOUT.get(self.preset, ()):
            for key, value in getattr(self, section):
                if value is not None:
                    yield f"detect.{section}.{key}"

    def contradictions(self) -> Iterator[str]:
        """What cannot all be meant here, one line each, beginning with the full key to change."""
        spike = self.spike
        if spike.needed is not None and spike.of is not None and spike.needed > spike.of:
            yield f"detect.spike.needed: {spike.needed} of detect.spike.of, {spike.of}, can never happen"
        for key in self.without_effect():
            yield f"{key} has no effect with detect.preset {self.preset}, which has no such rule"
        ranks = self.ranks
        if 0 < ranks.incident_steps < ranks.watch_steps:
            yield (
                f"detect.ranks.incident_steps ({ranks.incident_steps}) must be at least detect.ranks.watch_steps "
                f"({ranks.watch_steps}), or 0 for never"
            )
        rate = self.throughput
        if rate.collapsed is not None and rate.recovered is not None and rate.collapsed >= rate.recovered:
            yield f"detect.throughput.collapsed ({rate.collapsed:g}) must be below detect.throughput.recovered"
