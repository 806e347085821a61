"""From the winner to the target's values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.tuning.edge import Edge, EdgeFit, Line, fit_edges
from stormsail.tuning.space import Cell
from stormsail.tuning.transfer import Goal, Source, beta2_for_batch, hand_over, warmup_in_steps


def law(slope: float, intercept: float, widths: int = 3) -> EdgeFit:
    line = Line(slope, intercept)
    return EdgeFit(line, line, widths)


SOURCE = Source(
    cell=Cell(0.95, "1", 0.05),
    lr=0.01,
    steps=1000,
    tokens_per_step=1000,
    width=64,
    clip_rate=0.1,
    edge=Edge(0.08, 0.16),
    fit=law(0.0, -2.5257286443082556),  # 0.08 at any width
    parametrisation="mup",
)
GOAL = Goal(steps=100_000, tokens_per_step=1000, width=256)


def value(source: Source, goal: Goal, key: str) -> float | int | None:
    return {value.key: value.value for value in hand_over(source, goal).values}[key]


def why(source: Source, goal: Goal, key: str) -> str:
    return next(value.why for value in hand_over(source, goal).values if value.key == key)


def test_the_published_pair_of_half_lives() -> None:
    assert beta2_for_batch(0.95, 4_000_000, 500_000) == pytest.approx(0.9936, abs=1e-4)
    assert beta2_for_batch(0.95, 500_000, 4_000_000) == 0.9  # 0.66 by the rule, which nobody uses


@given(st.floats(0.5, 0.9999), st.integers(1, 10**7), st.integers(1, 10**7))
def test_beta2_stays_in_the_range_that_is_known(beta2: float, tokens: int, new: int) -> None:
    assert 0.9 <= beta2_for_batch(beta2, tokens, new) <= 0.999


@given(st.floats(0, 1e9), st.integers(1, 10**6), st.floats(0.9, 0.999), st.integers(1, 10**6))
def test_a_warm_up_fits_into_the_run(tokens: float, per_step: int, beta2: float, steps: int) -> None:
    assert 0 <= warmup_in_steps(tokens, tokens_per_step=per_step, beta2=beta2, steps=steps) <= steps // 2


def test_a_warm_up_is_carried_over_in_tokens_and_is_no_shorter_than_the_second_moment() -> None:
    assert value(SOURCE, GOAL, "schedule.warmup_steps") == 50
    assert value(SOURCE, replace(GOAL, tokens_per_step=500), "schedule.warmup_steps") == 100
    assert value(replace(SOURCE, cell=Cell(0.999, "1", 0.0)), GOAL, "schedule.warmup_steps") == 1000


@pytest.mark.parametrize(
    ("edges", "width", "lr"),
    [
        ((0.08, 0.08, 0.08), 1024, 0.04),
        ((0.08, 0.04, 0.04), 1024, 0.00445),  # the three could be one and the same, and need not
        ((0.16, 0.08, 0.04), 256, 0.005),
        ((0.04, 0.08, 0.16), 1024, 0.08),  # no higher than what was seen
    ],
)
def test_the_more_cautious_reading_of_the_edges_limits_the_rate(
    edges: tuple[float, ...], width: int, lr: float
) -> None:
    found = [(at, Edge(edge, 2 * edge)) for at, edge in zip((16, 32, 64), edges, strict=True)]
    source = replace(SOURCE, lr=1.0, edge=found[-1][1], fit=fit_edges(found))
    assert value(source, replace(GOAL, width=width), "optimizer.lr") == pytest.approx(lr, rel=0.01)


def test_nothing_is_handed_over_that_failed_on_the_largest_proxy() -> None:
    source = replace(SOURCE, lr=0.04, edge=Edge(None, 0.01), fit=law(0.0, 0.0))
    assert value(source, GOAL, "optimizer.lr") == pytest.approx(0.005)
    assert "failed on the largest proxy" in why(source, GOAL, "optimizer.lr")


def test_the_learning_rate_is_at_most_half_of_the_edge() -> None:
    assert value(SOURCE, GOAL, "optimizer.lr") == 0.01
    assert value(replace(SOURCE, lr=0.07), GOAL, "optimizer.lr") == pytest.approx(0.04)
    falling = replace(SOURCE, fit=law(-1.0, 0.0))
    assert value(falling, GOAL, "optimizer.lr") == pytest.approx(0.5 / 256, rel=1e-3)
    rising = replace(SOURCE, lr=0.07, fit=law(1.0, 0.0))  # no learning rate beyond what was seen
    assert value(rising, GOAL, "optimizer.lr") == pytest.approx(0.04)
    assert value(replace(SOURCE, lr=0.07, fit=None, width=None), replace(GOAL, width=None), "optimizer.lr") == 0.04


@pytest.mark.parametrize(("clip", "expected"), [("1", 1.0), ("off", None)])
def test_a_clip_is_told_as_a_percentile(clip: str, expected: float | None) -> None:
    source = replace(SOURCE, cell=Cell(0.95, clip, 0.05))
    (why,) = [v.why for v in hand_over(source, GOAL).values if v.key == "train.clip_norm"]
    assert value(source, GOAL, "train.clip_norm") == expected
    assert "percentile" in why or "does not clip" in why


def test_a_winner_that_follows_a_percentile_leaves_the_threshold_alone_and_says_so() -> None:
    handed = hand_over(replace(SOURCE, cell=Cell(0.95, "p90", 0.05)), GOAL)
    assert "train.clip_norm" not in {value.key for value in handed.values}
    assert any("90th percentile" in text and "left as it is" in text for text in handed.assumptions)


def test_what_the_rules_would_have_said_is_told_where_it_is_cut() -> None:
    small = replace(SOURCE, cell=Cell(0.5, "1", 0.05))  # below the range even at the same batch
    assert "that would be 0.5, outside of 0.9 to 0.999" in why(small, GOAL, "optimizer.betas.1")
    assert "outside" not in why(replace(SOURCE, cell=Cell(0.9, "1", 0.05)), GOAL, "optimizer.betas.1")
    assert "cut to half of the run" in why(SOURCE, replace(GOAL, steps=60), "schedule.warmup_steps")
    assert "cut" not in why(SOURCE, replace(GOAL, steps=100), "schedule.warmup_steps")


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (None, "is not known, as no proxy's stable band ends within the grid"),
        (law(0.0, -2.0, 2), "is taken to be the smallest one seen: 2 of"),
        (
            law(-0.5, -2.0),
            "is expected at 0.00846 by the least drift that explains what was seen, width^-0.50, and at 0.00846",
        ),
    ],
)
def test_where_the_edge_comes_from_is_said(fit: EdgeFit | None, said: str) -> None:
    assert said in " ".join(hand_over(replace(SOURCE, fit=fit), GOAL).assumptions)


def test_what_nobody_checked_is_said() -> None:
    said = " ".join(hand_over(replace(SOURCE, edge=Edge(0.08, None)), GOAL).assumptions)
    assert "never proves" in said
    assert "width^+0.00" in said
    assert "true edge lies higher" in said
    standard = hand_over(replace(SOURCE, parametrisation="standard", edge=Edge(None, 0.01)), GOAL)
    assert "without mu-parametrisation" in " ".join(standard.assumptions)
    assert "no known edge" in " ".join(standard.assumptions)
