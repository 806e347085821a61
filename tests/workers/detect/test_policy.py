"""From the configuration to the rules of a live run."""

from __future__ import annotations

import math
from dataclasses import fields

from tests.support.one_rank import tiny_config

from stormsail.platform.config.detect import WITHOUT, DetectSection, SlowDivergenceLimits, SpikeLimits
from stormsail.platform.config.section import Section
from stormsail.workers.detect.policy import Policy, live_rules
from stormsail.workers.detect.rules.explosion import Explosion
from stormsail.workers.detect.rules.oscillation import Oscillation
from stormsail.workers.detect.rules.presets import PRESETS, preset
from stormsail.workers.detect.rules.registry import OURS
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, judge

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


def test_the_sections_without_a_rule_are_known_for_each_preset() -> None:
    ours = {rule.name.replace("-", "_") for rule in OURS} - {"nonfinite"}
    for name in PRESETS:
        assert set(WITHOUT.get(name, ())) == ours - {rule.name.replace("-", "_") for rule in preset(name)}


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
    policy = Policy.of(config, samples=100)
    assert (policy.on_watch, policy.ranks.z, policy.nonfinite.patience) == ("skip", 5.0, 7)


def known_periods(samples: int, **detect: object) -> set[int]:
    config = tiny_config(detect=detect, train={"steps": 100, "global_batch": 4, "micro_batch": 2})
    policy = Policy.of(config, samples=samples)
    return {rule.data_period for rule in policy.rules if isinstance(rule, Oscillation)}


def test_the_period_of_the_datas_order_is_one_pass_over_it() -> None:
    assert known_periods(148) == {37}
    assert known_periods(150) == {38}  # to the next whole step
    assert known_periods(6) == {0}  # shorter than any period that is looked for


def test_a_period_that_is_told_goes_over_the_datas_own() -> None:
    assert known_periods(148, oscillation={"data_period": 46}) == {46}
    assert known_periods(148, oscillation={"data_period": 0}) == {0}


def test_a_swing_with_each_pass_over_the_data_is_no_finding_of_a_live_run() -> None:
    for samples, found in ((148, False), (100, True)):  # passes of 37 and of 25 steps; the swing is one of 37
        config = tiny_config(train={"steps": 100, "global_batch": 4, "micro_batch": 2})
        policy, state, said = Policy.of(config, samples=samples), DetectorState(), set()
        for step in range(1800):
            swing = 0.3 * min(max(step - 900, 0) / 600.0, 1.0) * math.sin(2.0 * math.pi * step / 37.0)
            noise = 0.01 * math.sin(step * 12.9898)
            state, verdict = judge(state, Observation(step, 3.0 + swing + noise, 1.0, 0, False, 32), policy)
            said |= {name for name, _ in verdict.findings}
        assert ("oscillation" in said) == found
