"""Scores, their order, and whether a sweep counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.tuning.metrics import Course, figures_of
from stormsail.tuning.objective import (
    CellScore,
    Measured,
    Rate,
    best_losses,
    counted_loss,
    dominates,
    failed,
    judge_control,
    loss_by_lr,
    rank,
    rate_of,
    score_cells,
    wilson,
)
from stormsail.tuning.space import Cell, Trial

Make = Callable[..., Measured]
A, B, C = Cell(0.9, "1", 0.05), Cell(0.95, "1", 0.05), Cell(0.999, "off", 0.0)
RATES = (0.01, 0.02)


def trials(*cells: Cell, proxies: tuple[str, ...] = ("w32",)) -> list[Trial]:
    return [Trial(p, cell, lr, seed) for p, cell, lr, seed in itertools.product(proxies, cells, RATES, (1, 2))]


def results(made: list[Measured]) -> dict[str, Measured]:
    return {one.trial.id: one for one in made}


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=8))
def test_the_interval_holds_the_rate_and_is_never_narrower_than_independent_trials_allow(
    seeds: list[list[bool]],
) -> None:
    found = rate_of(dict(enumerate(seeds)))
    assert 0.0 <= found.low <= found.share <= found.high <= 1.0
    low, high = wilson(found.share, sum(map(len, seeds)))
    assert found.low <= low + 1e-12
    assert high - 1e-12 <= found.high
    low, high = wilson(found.share, len(seeds))
    assert low - 1e-12 <= found.low  # and never wider than one trial for each seed
    assert found.high <= high + 1e-12


def test_the_interval_is_wilsons() -> None:
    assert rate_of({}) == rate_of({1: []}) == Rate(0.0, 0.0, 1.0)
    # Fifteen trials leave about 25 points either way.
    assert wilson(12 / 15, 15) == pytest.approx((0.548, 0.930), abs=1e-3)
    alike = rate_of({seed: [True] * 4 + [False] for seed in (1, 2, 3)})
    assert (alike.low, alike.high) == wilson(12 / 15, 15)


def test_seeds_that_differ_and_a_single_seed_are_worth_fewer_trials() -> None:
    torn = rate_of({1: [True] * 5, 2: [False] * 5})
    assert (torn.low, torn.high) == wilson(0.5, 2)
    alone = rate_of({1: [True] * 15})
    assert (alone.low, alone.high) == wilson(1.0, 1)


def test_longer_trials_make_no_rate_surer(make_measured: Make) -> None:
    planned = trials(A)
    short, long = (
        score_cells(planned, results([make_measured(t, steps=steps, incidents_per_10k=10.0) for t in planned]))[0]
        for steps in (100, 100_000)
    )
    assert short.incidents == long.incidents
    assert short.incidents.share == 1.0
    assert short.divergence.share == 0.0
    assert short.divergence.high == pytest.approx(1.0 - short.success.low)


def test_what_was_ended_early_moves_neither_sensitivity_nor_spread(make_measured: Make) -> None:
    """Whether the scheduler ended a diverged trial or let it run on is chance; the figures must not depend on it."""
    planned = trials(A)
    losses = [4.0] * 20 + [2.0] * 20 + [3.0] * 60

    def scored(steps: int) -> CellScore:
        ended = figures_of(Course(loss=losses[:steps], condemned=40), steps=100)
        made = [
            replace(make_measured(t), figures=ended) if t.lr == max(RATES) else make_measured(t, initial_loss=4.0)
            for t in planned
        ]
        return score_cells(planned, results(made))[0]

    ended, ran_on = scored(40), scored(100)
    assert ran_on.lr_sensitivity == ended.lr_sensitivity == pytest.approx((4.0 - 2.0) / 2)
    assert (ran_on.final_loss, ran_on.final_sd, ran_on.best_lr) == (ended.final_loss, ended.final_sd, ended.best_lr)
    assert (ran_on.success, ran_on.divergence) == (ended.success, ended.divergence)


def test_a_stable_end_half_a_nat_above_the_best_failed(make_measured: Make) -> None:
    best = {"w32": 2.0}
    assert not failed(make_measured(final=2.5), best)
    assert failed(make_measured(final=2.51), best)
    assert failed(make_measured(diverged="it rose"), best)
    assert failed(make_measured(final=None), best)


def test_the_best_is_never_the_controls_nor_a_diverged_ones(make_measured: Make) -> None:
    control = Trial("w32", C, 0.1, 1, control=True)
    made = [make_measured(final=2.0), make_measured(control, final=0.5), make_measured(final=0.1, diverged="nan")]
    assert best_losses(made) == {"w32": 2.0}


@pytest.mark.parametrize(
    ("outcomes", "void"), [(("", ""), True), (("nan", ""), False), (("nan", "nan"), False), ((), True)]
)
def test_a_sweep_whose_control_does_not_fail_is_void(
    make_measured: Make, outcomes: tuple[str, ...], void: bool
) -> None:
    planned = [Trial("w32", C, 0.1, seed, control=True) for seed in (1, 2)]
    made = results([make_measured(t, diverged=why) for t, why in zip(planned, outcomes, strict=False)])
    verdict = judge_control(planned, made, {"w32": 2.0})
    assert verdict.void is void
    assert verdict.missing == 2 - len(outcomes)


def test_the_control_has_to_fail_on_every_proxy(make_measured: Make) -> None:
    planned = [Trial(proxy, C, 0.1, 1, control=True) for proxy in ("w32", "w64")]
    made = results([make_measured(planned[0], diverged="nan"), make_measured(planned[1])])
    assert judge_control(planned, made, {"w32": 2.0, "w64": 2.0}).void


def test_stability_comes_before_loss(make_measured: Make) -> None:
    planned = trials(A, B)
    made = [
        make_measured(trial, final=2.2 if trial.cell == A else 2.0, diverged="nan" * (trial == planned[4]))
        for trial in planned
    ]
    scores = score_cells(planned, results(made))
    assert [(score.cell, score.verdict) for score in scores] == [(A, "winner"), (B, "pareto")]
    assert scores[1].success.share == 0.75


def test_a_slow_learning_rate_is_ranked_by_what_it_costs_and_not_as_unstable(make_measured: Make) -> None:
    """A, slow at the lower rate, has the smaller success rate; B diverged once."""
    planned = trials(A, B)
    made = [
        make_measured(
            t,
            final=3.0 if t.cell == A and t.lr == min(RATES) else 2.0,
            diverged="nan" * (t.cell == B and t == planned[4]),
        )
        for t in planned
    ]
    scores = score_cells(planned, results(made))
    assert [(score.cell, score.success.share, score.divergence.share) for score in scores] == [
        (A, 0.5, 0.0),
        (B, 0.75, 0.25),
    ]


def test_seeds_are_averaged_and_spread_is_told(make_measured: Make) -> None:
    planned = trials(A)
    losses = {(0.01, 1): 2.0, (0.01, 2): 2.2, (0.02, 1): 2.4, (0.02, 2): 2.4}
    (score,) = score_cells(planned, results([make_measured(t, final=losses[t.lr, t.seed]) for t in planned]))
    assert score.best_lr == 0.01
    assert score.final_loss == pytest.approx(2.1)
    assert score.final_sd == pytest.approx(math.sqrt(0.02))
    assert score.lr_sensitivity == pytest.approx((0.0 + 0.3) / 2)


def test_a_rate_that_failed_with_one_seed_is_not_the_best_one(make_measured: Make) -> None:
    planned = trials(A)
    made = [
        make_measured(t, final=1.0 if t.lr == 0.02 else 2.0, diverged="nan" * (t.lr == 0.02 and t.seed == 1))
        for t in planned
    ]
    assert score_cells(planned, results(made))[0].best_lr == 0.01


def test_what_is_missing_ranks_last_and_never_wins(make_measured: Make) -> None:
    planned = trials(A, B, C)
    made = [make_measured(t, final=3.0 if t.cell == B else 2.0) for t in planned[:-1]]
    assert [score.verdict for score in score_cells(planned, results(made))][-1] == "incomplete"
    assert score_cells(planned, {})[0].verdict == "incomplete"


def test_a_sweep_in_which_all_diverge_still_has_a_table(make_measured: Make) -> None:
    planned = trials(A, B)
    made = [make_measured(t, final=None, initial_loss=None, diverged="nan") for t in planned]
    scores = score_cells(planned, results(made))
    assert {score.verdict for score in scores} == {"unstable"}
    assert {score.success.share for score in scores} == {0.0}


FIGURES = st.tuples(st.sampled_from([None, 1.5, 2.0, 9.0]), st.sampled_from(["", "nan"]))


@given(st.lists(FIGURES, min_size=12, max_size=12))
def test_any_outcome_is_ranked_and_what_is_dominated_is_no_pareto(outcomes: list[tuple[float | None, str]]) -> None:
    planned = trials(A, B, C)
    made = [plain(t, final, why) for t, (final, why) in zip(planned, outcomes, strict=True)]
    scores = score_cells(planned, results(made))
    ranks = [rank(score) for score in scores]
    assert ranks == sorted(ranks)
    assert not any(math.isnan(value) for value in itertools.chain.from_iterable(ranks))
    kept = [score for score in scores if score.verdict in ("winner", "pareto")]
    assert not any(dominates(one, other) for one, other in itertools.permutations(kept, 2))


def plain(trial: Trial, final: float | None, why: str) -> Measured:
    losses = [5.0] * 10 + [math.nan if final is None else final] * 20
    return Measured(trial, figures_of(Course(loss=losses), steps=len(losses), stopped=why), 1.0)


def test_a_loss_counts_at_most_as_the_initial_one(make_measured: Make) -> None:
    def figures(**known: Any) -> Any:
        return make_measured(**known).figures

    assert counted_loss(figures(final=9.0)) == 5.0
    assert counted_loss(figures(final=None)) == 5.0
    assert counted_loss(figures(final=None, initial_loss=None)) is None
    assert loss_by_lr([make_measured(final=None, initial_loss=None)]) == {0.01: None}
