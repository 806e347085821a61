"""From the configuration to the rules of a live run."""

from __future__ import annotations

from dataclasses import fields

from tests.support.one_rank import tiny_config

from stormsail.platform.config.detect import DetectSection, SlowDivergenceLimits, SpikeLimits
from stormsail.platform.config.section import Section
from stormsail.workers.detect.policy import Policy, live_rules
from stormsail.workers.detect.rules.explosion import Explosion
from stormsail.workers.detect.rules.presets import PRESETS, preset
from stormsail.workers.detect.rules.registry import OURS

# What only a log needs: rows that lie apart, and a log that begins in the middle of a run.
LOG_ONLY = {"coarse_rise", "coarse_stride", "severe_rise", "hindsight", "coarse_margin", "memory_rows"}


def test_each_threshold_of_a_rule_is_a_key_of_its_section_and_nothing_else_is() -> None:
    for rule in OURS:
        if rule.name == "nonfinite":
            continue
        section = DetectSection.model_fields[rule.name.replace("-", "_")].annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        assert set(section.model_fields) == {threshold.name for threshold in rule.thresholds()} - LOG_ONLY


def test_without_a_word_the_rules_are_those_of_the_preset() -> None:
    for name in PRESETS:
        chosen = live_rules(DetectSection(preset=name))  # type: ignore[arg-type] # each is one
        assert [rule.name for rule in chosen] == [rule.name for rule in preset(name) if rule.name != "nonfinite"]
        assert all(
            getattr(live, part.name) == getattr(given, part.name)
            for live, given in zip(chosen, (rule for rule in preset(name) if rule.name != "nonfinite"), strict=True)
            for part in fields(given)  # type: ignore[arg-type] # each rule is a dataclass
            if (part.name, live.name) not in {("hindsight", "resume"), ("rows", "explosion")}
        )


def test_what_the_configuration_sets_goes_over_the_preset() -> None:
    detect = DetectSection(
        preset="sensitive", spike=SpikeLimits(z=7.5, grace_steps=0), slow_divergence=SlowDivergenceLimits(margin=1.0)
    )
    set_to = {(rule.name, limit.name): limit.value for rule in live_rules(detect) for limit in rule.thresholds()}
    plain = {(rule.name, limit.name): limit.value for rule in preset("sensitive") for limit in rule.thresholds()}
    assert (set_to["spike", "z"], set_to["spike", "grace_steps"]) == (7.5, 0)
    assert set_to["spike", "severe_z"] == plain["spike", "severe_z"]
    assert set_to["slow-divergence", "margin"] == 1.0


def test_a_live_run_waits_longer_with_explosions_than_a_log_unless_told_otherwise() -> None:
    rows = {rule.rows for rule in live_rules(DetectSection()) if isinstance(rule, Explosion)}
    assert rows == {4}
    told = DetectSection.model_validate({"explosion": {"rows": 2}})
    assert {rule.rows for rule in live_rules(told) if isinstance(rule, Explosion)} == {2}


def test_a_policy_takes_the_rest_from_its_sections() -> None:
    config = tiny_config(detect={"on_watch": "skip", "ranks": {"z": 5.0}}, nonfinite={"patience": 7})
    policy = Policy.of(config)
    assert (policy.on_watch, policy.ranks.z, policy.nonfinite.patience) == ("skip", 5.0, 7)
