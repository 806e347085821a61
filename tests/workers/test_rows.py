"""From a step's vitals to the named values of its row."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from stormsail.platform.step_values import RANK_VALUES, value_of
from stormsail.workers import rows
from stormsail.workers.detect.ranks import RankReading
from stormsail.workers.detect.rules.row import Finding, Kind, Level
from stormsail.workers.detect.stragglers import Slowness
from stormsail.workers.detect.verdict import Verdict, VerdictKind
from stormsail.workers.sampling import Governor
from stormsail.workers.vitals import RankVitals, Times, Vitals, pack, unpack

GROUPS = ("embed", "blocks.0")
CALM = RankVitals(
    loss_sum=250.0,
    squares=(0.09, 0.16),
    tokens=100,
    nonfinite_gradients=0,
    nonfinite_state=0,
    first_parameter=-1,
    stop=0,
    step=7,
    times=Times(data_s=0.01, compute_s=0.2, comm_s=0.03),
)
SAMPLED = dataclasses.replace(
    CALM, activations=(1.0, 5.0), attention=(math.nan, 3.0), update_squares=(4.0, 9.0), correct=40, zeros=2
)


def combine(*ranks: RankVitals) -> Vitals:
    return unpack(np.stack([pack(rank) for rank in ranks]), nominal_tokens=100 * len(ranks))


def values(seen: Vitals, verdict: Verdict | None = None, slowness: Slowness | None = None) -> dict[str, float]:
    return rows.every_step(
        seen,
        verdict=verdict or Verdict(VerdictKind.HEALTHY),
        slowness=slowness or Slowness(),
        governor=Governor(10, 0.01),
        skipped=3,
        clip=0.5,
        clipped=0.25,
    )


def test_every_row_says_where_the_time_went_and_what_became_of_the_gradient() -> None:
    found = values(combine(CALM, dataclasses.replace(CALM, loss_sum=300.0, times=Times(compute_s=0.3))))
    assert (found["clip.factor"], found["clip.share"], found["updates.skipped"]) == (0.5, 0.25, 3.0)
    assert (found["time.data_s"], found["time.compute_s"], found["time.comm_s"]) == (0.01, 0.3, 0.03)
    assert found["loss.rank_spread"] == 0.5
    assert found["sampling.every_steps"] == 10.0
    assert "nonfinite.state" not in found


def test_what_was_found_is_in_it_under_the_name_of_who_found_it() -> None:
    verdict = Verdict(
        VerdictKind.WATCH,
        findings=(("spike", Finding(Level.WATCH, Kind.SPIKE, 7.5, "because")),),
        rank=RankReading(1, 3.0, 0, "loss"),
    )
    found = values(combine(CALM, CALM), verdict, Slowness(1, 1.4))
    assert (found["detector.spike"], found["rank.outlier"], found["rank.outlier_z"]) == (7.5, 1.0, 3.0)
    assert (found["time.slowest_rank"], found["time.slowest_ratio"]) == (1.0, 1.4)


def test_counted_elements_of_the_state_are_in_it() -> None:
    bad = dataclasses.replace(CALM, nonfinite_gradients=2, nonfinite_state=5)
    assert values(combine(bad))["nonfinite.state"] == 5.0


def test_a_sample_has_its_layer_groups_and_the_whole() -> None:
    found = rows.sampled(combine(SAMPLED, dataclasses.replace(SAMPLED, activations=(7.0, 1.0))), GROUPS, (10.0, 40.0))
    assert (found["activation.max"], found["activation.max.embed"], found["activation.max.blocks.0"]) == (7.0, 7.0, 5.0)
    assert found["attention.max_logit"] == found["attention.max_logit.blocks.0"] == 3.0
    assert "attention.max_logit.embed" not in found
    assert found["update.rms"] == pytest.approx(math.sqrt(26.0 / 50.0))
    assert found["update.rms.embed"] == pytest.approx(math.sqrt(8.0 / 10.0))
    assert found["accuracy.tokens"] == 0.4
    assert found["norm.zero_share"] == pytest.approx(4.0 / 50.0)


def test_what_was_not_seen_is_absent() -> None:
    assert rows.sampled(combine(CALM), GROUPS, (10.0, 40.0)) == {}


def test_layer_norms_are_named_by_group() -> None:
    assert rows.layer_norms(combine(CALM), GROUPS) == {"norm.embed": pytest.approx(0.3), "norm.blocks.0": 0.4}


def test_each_rank_has_one_number_under_each_name() -> None:
    found = rows.by_rank(combine(CALM, dataclasses.replace(CALM, loss_sum=300.0)))
    assert set(found) == {value.name for value in RANK_VALUES}
    assert found["loss"] == (2.5, 3.0)


def test_no_name_is_unknown() -> None:
    verdict = Verdict(VerdictKind.WATCH, findings=(("spike", Finding(Level.WATCH, Kind.SPIKE, 7.5, "because")),))
    found = values(combine(SAMPLED), verdict) | rows.sampled(combine(SAMPLED), GROUPS, (10.0, 40.0))
    assert [name for name in (*found, *rows.layer_norms(combine(CALM), GROUPS)) if value_of(name) is None] == []
