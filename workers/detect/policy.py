"""From the configuration to the rules of a live run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from stormsail.platform.config.detect import DetectSection, NonfiniteSection, RanksLimits
from stormsail.platform.config.model import RunConfig
from stormsail.workers.detect.beside import Beside
from stormsail.workers.detect.rules.explosion import Explosion
from stormsail.workers.detect.rules.nonfinite_rows import NonfiniteRows
from stormsail.workers.detect.rules.oscillation import SHORTEST
from stormsail.workers.detect.rules.presets import preset, with_data_period
from stormsail.workers.detect.rules.registry import AnyRule
from stormsail.workers.detect.rules.resume import ResumeContinuity

_EXPLOSION_STEPS = 4


def live_rules(detect: DetectSection) -> tuple[AnyRule, ...]:
    """The rules of the preset with the thresholds that the configuration sets.

    Non-finite numbers have no rule here: a live run counts them element by element and drops the update.
    """
    rules = [rule for rule in preset(detect.preset) if not isinstance(rule, NonfiniteRows)]
    return tuple(_adjusted(rule, detect) for rule in rules)


def _adjusted(rule: AnyRule, detect: DetectSection) -> AnyRule:
    if isinstance(rule, ResumeContinuity):
        # What was before a restart comes back with the checkpoint, so nothing is judged in hindsight.
        rule = replace(rule, hindsight=0)
    if isinstance(rule, Explosion):
        # In a log two rows are enough; a live run gives a spike of three steps the chance to return by itself.
        rule = replace(rule, rows=_EXPLOSION_STEPS)
    section = getattr(detect, rule.name.replace("-", "_"), None)
    if section is None:
        return rule
    known = {part.name for part in fields(rule)}  # type: ignore[arg-type]  # each rule is a dataclass
    chosen: dict[str, Any] = {name: value for name, value in section if value is not None and name in known}
    return replace(rule, **chosen)  # type: ignore[type-var]  # as above


@dataclass(frozen=True, slots=True)
class Policy:
    """What a live run judges by.

    Attributes:
        rules: In the order in which they are believed: of several incidents at one step, the first names it.
        on_watch: What becomes of an update whose gradient norm is out of its range.
        ranks: Limits of one rank against the others.
        nonfinite: Limits of dropped updates.
        beside: Limits of what is watched beside the rules.
    """

    rules: tuple[AnyRule, ...] = field(default_factory=lambda: live_rules(DetectSection()))
    on_watch: Literal["clip", "skip", "report"] = "clip"
    ranks: RanksLimits = field(default_factory=RanksLimits)
    nonfinite: NonfiniteSection = field(default_factory=NonfiniteSection)
    beside: Beside = field(default_factory=Beside)

    @classmethod
    def of(cls, config: RunConfig, *, samples: int) -> Policy:
        """The policy of a run.

        Args:
            config: The run.
            samples: Samples of its data; one pass over them is the only period that its order has.
        """
        detect = config.detect
        rules = live_rules(detect)
        if detect.oscillation.data_period is None:
            rules = with_data_period(rules, data_period(samples, config.train.global_batch))
        return cls(rules, detect.on_watch, detect.ranks, config.nonfinite, Beside.of(detect))


def data_period(samples: int, global_batch: int) -> int:
    """Steps of one pass over the data; 0 where that is shorter than any period that is looked for."""
    steps = round(samples / global_batch)
    return steps if steps >= SHORTEST else 0
