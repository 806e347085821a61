"""What the detectors remember, between checkpoints and versions."""

from __future__ import annotations

import json
import math
import random

from stormsail.platform.config.detect import DetectSection
from stormsail.workers.detect.policy import Policy, live_rules
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, judge


def after(steps: int, policy: Policy | None = None, *, groups: int = 4, ranks: int = 2) -> DetectorState:
    noise, state = random.Random(1), DetectorState()
    for step in range(steps):
        norms = tuple(math.exp(noise.gauss(0.0, 0.1)) for _ in range(groups))
        losses = tuple(3.0 + noise.gauss(0.0, 0.05) for _ in range(ranks))
        shards = tuple(1.0 + noise.gauss(0.0, 0.01) for _ in range(ranks))
        seen = Observation(step, sum(losses) / ranks, 1.0, 0, False, 100, norms, losses, shards)
        state, _ = judge(state, seen, policy or Policy())
    return state


def size(state: DetectorState) -> int:
    return len(json.dumps(state.to_json()))


def test_it_comes_back_bit_for_bit() -> None:
    state = after(150)
    assert DetectorState.from_json(json.loads(json.dumps(state.to_json())), Policy().rules) == state


def test_a_rule_that_was_not_in_force_has_seen_nothing_and_one_that_is_not_any_more_is_left_out() -> None:
    article = live_rules(DetectSection(preset="article"))
    state = DetectorState.from_json(after(50).to_json(), article)
    assert state.rules == {}
    assert state.layers == after(50).layers


def test_it_does_not_grow_with_the_run_and_stays_far_below_ten_megabytes() -> None:
    early, late = size(after(320)), size(after(420))
    assert late < 1.1 * early
    assert size(after(40, groups=200, ranks=64)) < 500_000


def test_a_state_of_before_drops_were_counted_by_share_is_read_as_one_without_drops() -> None:
    value = after(20).to_json()
    assert isinstance(value["drops"], dict)
    del value["drops"]["lately"]
    assert DetectorState.from_json(value, Policy().rules) == after(20)
