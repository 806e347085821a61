"""Presets: a choice of rules and thresholds under one name. Pure.

`default` is what Stormsail stands for. `sensitive` sees more and cries more often, `quiet` the reverse. `article`
holds the rules of the articles as they are written there: to see what they would have done, not to rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from stormsail.platform.config.vocabulary import nearest
from stormsail.platform.errors import ConfigError
from stormsail.workers.detect.rules.divergence import SlowDivergence
from stormsail.workers.detect.rules.explosion import Explosion
from stormsail.workers.detect.rules.level_shift import LevelShift
from stormsail.workers.detect.rules.oscillation import Oscillation
from stormsail.workers.detect.rules.precursor import NormPrecursor
from stormsail.workers.detect.rules.registry import ARTICLE, OURS, AnyRule
from stormsail.workers.detect.rules.resume import ResumeContinuity
from stormsail.workers.detect.rules.robust_spike import RobustSpike

DEFAULT = "default"

_SENSITIVE: Mapping[str, AnyRule] = {
    rule.name: rule
    for rule in (
        Explosion(z=9.0, norm_ratio=6.0, rise=0.4, loss_ratio=1.3),
        RobustSpike(z=5.0, severe_z=9.0, norm_ratio=6.0, grace_steps=10, least_rise=0.05),
        ResumeContinuity(rise=0.12, z=6.0, norm_ratio=2.0, severe_ratio=5.0),
        LevelShift(rise=0.15, watch_rise=0.08, z=5.5),
        SlowDivergence(margin=0.12, share=0.03, sigmas=9.0),
        NormPrecursor(z=5.0, ratio=2.0),
        Oscillation(correlation=0.4, swing=0.01, growth=1.5),
    )
}
_QUIET: Mapping[str, AnyRule] = {
    rule.name: rule
    for rule in (
        Explosion(z=20.0, norm_ratio=20.0, rise=1.0, loss_ratio=1.8, coarse_rise=0.5),
        RobustSpike(z=8.0, severe_z=20.0, norm_ratio=20.0, grace_steps=50, least_rise=0.2),
        ResumeContinuity(rise=0.4, z=12.0, norm_ratio=5.0, severe_ratio=12.0),
        LevelShift(rise=0.5, watch_rise=0.3, z=10.0),
        SlowDivergence(margin=0.5, share=0.1, sigmas=18.0, stay=30),
        NormPrecursor(z=8.0, ratio=5.0),
    )
}

PRESETS: Mapping[str, tuple[AnyRule, ...]] = MappingProxyType(
    {
        DEFAULT: OURS,
        "sensitive": tuple(_SENSITIVE.get(rule.name, rule) for rule in OURS),
        "quiet": tuple(_QUIET.get(rule.name, rule) for rule in OURS if rule.name in {*_QUIET, "nonfinite"}),
        "article": ARTICLE,
    }
)


def preset(name: str) -> tuple[AnyRule, ...]:
    """The rules of a preset. Raises `ConfigError` for a name that none has."""
    if name not in PRESETS:
        close = nearest(name, tuple(PRESETS))
        raise ConfigError(
            f"there is no preset {name!r}" + (f"; did you mean {close!r}?" if close else ""),
            where="--preset",
            todo=f"choose one of {', '.join(PRESETS)}",
        )
    return PRESETS[name]


def with_data_period(rules: tuple[AnyRule, ...], steps: int) -> tuple[AnyRule, ...]:
    """The same rules, told the period of the data's own order."""
    return tuple(replace(rule, data_period=steps) if isinstance(rule, Oscillation) else rule for rule in rules)
