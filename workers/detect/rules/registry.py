"""All rules by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from stormsail.platform.config.vocabulary import nearest
from stormsail.platform.errors import ConfigError
from stormsail.workers.detect.rules.article import (
    FiveTimesBest,
    NormThousand,
    SigmaSpike,
    SigmaSpikeExcluded,
    ThreeTimesAverage,
)
from stormsail.workers.detect.rules.divergence import SlowDivergence
from stormsail.workers.detect.rules.explosion import Explosion
from stormsail.workers.detect.rules.level_shift import LevelShift
from stormsail.workers.detect.rules.nonfinite_rows import NonfiniteRows
from stormsail.workers.detect.rules.oscillation import Oscillation
from stormsail.workers.detect.rules.precursor import NormPrecursor
from stormsail.workers.detect.rules.projects import (
    ByteRobustJump,
    ForecastThreeSigma,
    FoundryKillLossSpike,
    MegatronFirstHundred,
    OlmoSkipStep,
    OlmoSkipStepLoss,
    OlmoSpikeScore,
    RobustMonitor,
    ZclipTouch,
)
from stormsail.workers.detect.rules.resume import ResumeContinuity
from stormsail.workers.detect.rules.robust_spike import RobustSpike
from stormsail.workers.detect.rules.row import Kind, Level
from stormsail.workers.detect.rules.rule import Rule, Threshold

AnyRule: TypeAlias = Rule[Any]
"""A rule whatever its state is: in a collection of rules each has another."""

OURS: tuple[AnyRule, ...] = (
    NonfiniteRows(),
    Explosion(),
    RobustSpike(),
    ResumeContinuity(),
    LevelShift(),
    SlowDivergence(),
    NormPrecursor(),
    Oscillation(),
)
ARTICLE: tuple[AnyRule, ...] = (
    SigmaSpike(),
    SigmaSpikeExcluded(),
    FiveTimesBest(),
    ThreeTimesAverage(),
    NormThousand(),
    ForecastThreeSigma(),
)
PROJECTS: tuple[AnyRule, ...] = (
    OlmoSkipStep(),
    OlmoSkipStepLoss(),
    OlmoSpikeScore(),
    FoundryKillLossSpike(),
    MegatronFirstHundred(),
    ByteRobustJump(),
    RobustMonitor(),
    ZclipTouch(),
)
RULES: Mapping[str, AnyRule] = MappingProxyType({rule.name: rule for rule in (*OURS, *ARTICLE, *PROJECTS)})


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule as a person reads about it.

    Attributes:
        name: Its name.
        kind: What it looks for.
        level: The highest level that it speaks at.
        unit: Unit of its severity.
        source: Where it comes from.
        summary: What it does, in one line.
        thresholds: Its numbers.
    """

    name: str
    kind: Kind
    level: Level
    unit: str
    source: str
    summary: str
    thresholds: tuple[Threshold, ...]


def describe(rule: AnyRule) -> RuleInfo:
    """What to know about a rule."""
    summary = (type(rule).__doc__ or "").split("\n", 1)[0]
    return RuleInfo(rule.name, rule.kind, rule.level, rule.unit, rule.source, summary, rule.thresholds())


def find(names: Sequence[str]) -> tuple[AnyRule, ...]:
    """The rules with these names, each once. Raises `ConfigError` for a name that none has."""
    for name in names:
        if name not in RULES:
            close = nearest(name, tuple(RULES))
            raise ConfigError(
                f"there is no rule named {name!r}" + (f"; did you mean {close!r}?" if close else ""),
                where="--rule",
                todo="`stormsail backtest --list` shows all of them",
            )
    return tuple(RULES[name] for name in dict.fromkeys(names))
