"""The whole answer of a sweep."""

from __future__ import annotations

from stormsail.platform.config.model import RunConfig
from stormsail.tuning.answer import Answer, build_answer, width_of
from stormsail.tuning.objective import Measured
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import all_settings, core_cells

Answered = tuple[SweepConfig, dict[str, Measured]]


def test_it_names_the_winner_its_edges_and_what_to_hand_over(answer: Answer) -> None:
    assert answer.standing == "answered"
    assert answer.complete
    assert answer.winner is not None
    assert answer.winner.cell.beta2 == 0.95
    assert [(edge.proxy, edge.width, edge.edge.lr) for edge in answer.edges] == [("w32", 32, 0.16), ("w48", 48, 0.16)]
    assert all(edge.edge.open_end for edge in answer.edges)
    assert answer.fit is None  # nobody has seen an end yet
    assert answer.handover is not None
    assert {value.key: value.value for value in answer.handover.values}["optimizer.lr"] == 0.01
    assert len(answer.curves) == 4


def test_edges_within_the_grid_are_fitted_over_the_widths(target: RunConfig, answered: Answered) -> None:
    from dataclasses import replace

    sweep, measured = answered
    ended = {
        key: replace(one, figures=replace(one.figures, diverged="too hot")) if one.trial.lr > 0.1 else one
        for key, one in measured.items()
    }
    found = build_answer(sweep, target, core_cells(sweep, all_settings(sweep.space)), ended)
    assert {edge.edge.open_end for edge in found.edges} == {False}
    assert found.fit is not None
    assert found.fit.widths == 2
    assert found.fit.likely.slope == found.fit.cautious.slope == 0.0


def test_the_clip_is_told_by_the_trials_whose_learning_rate_is_handed_over(
    target: RunConfig, answered: Answered
) -> None:
    from dataclasses import replace

    sweep, measured = answered
    chosen = {
        key: replace(one, figures=replace(one.figures, clip_rate=0.1 if one.trial.proxy == "w48" else 0.6))
        if one.trial.lr == 0.01
        else replace(one, figures=replace(one.figures, clip_rate=1.0))
        for key, one in measured.items()
    }
    found = build_answer(sweep, target, core_cells(sweep, all_settings(sweep.space)), chosen)
    assert found.handover is not None
    (why,) = [value.why for value in found.handover.values if value.key == "train.clip_norm"]
    assert "90th percentile" in why


def test_widths_without_an_edge_and_batches_that_differ_are_told(target: RunConfig, answered: Answered) -> None:
    from dataclasses import replace

    sweep, measured = answered
    narrow, wide = sweep.proxies
    uneven = sweep.model_copy(update={"proxies": (narrow.model_copy(update={"global_batch": 8}), wide)})
    cells = core_cells(sweep, all_settings(sweep.space))
    never = {
        key: replace(one, figures=replace(one.figures, diverged="too hot"))
        if one.trial.proxy == "w32" and one.trial.lr == 0.01 and one.trial.seed == 1
        else one
        for key, one in measured.items()
    }
    for found, told in (
        (build_answer(uneven, target, cells, measured), "The proxies have 512, 2,048 tokens a step"),
        (build_answer(sweep, target, cells, never), "stable with every seed at width 32"),
    ):
        assert found.handover is not None
        assert told in " ".join(found.handover.assumptions)
    plain = build_answer(sweep, target, cells, measured).handover
    assert plain is not None
    assert "tokens a step" not in " ".join(plain.assumptions)
    assert "with every seed at width" not in " ".join(plain.assumptions)


def test_a_sweep_that_was_broken_off_knows_what_is_left(target: RunConfig, answered: Answered) -> None:
    sweep, measured = answered
    some = dict(list(measured.items())[:10])
    found = build_answer(sweep, target, core_cells(sweep, all_settings(sweep.space)), some)
    assert (found.done, found.total, found.standing) == (10, len(measured), "incomplete")
    assert build_answer(sweep, target, [], {}).standing == "incomplete"


def test_a_void_sweep_has_neither_winner_nor_hand_over(target: RunConfig, answered: Answered) -> None:
    from dataclasses import replace

    sweep, measured = answered
    tame = {
        key: replace(one, figures=replace(one.figures, diverged="")) if one.trial.control else one
        for key, one in measured.items()
    }
    found = build_answer(sweep, target, core_cells(sweep, all_settings(sweep.space)), tame)
    assert found.standing == "void"
    assert found.winner is None
    assert found.handover is None
    assert found.rows


def test_only_the_sweeps_own_trials_count(target: RunConfig, answered: Answered) -> None:
    sweep, measured = answered
    narrower = sweep.model_copy(update={"space": sweep.space.model_copy(update={"beta2": (0.95,)})})
    found = build_answer(narrower, target, core_cells(narrower, all_settings(narrower.space)), measured)
    assert found.done == found.total < len(measured)


def test_a_model_of_the_users_own_has_no_width(bowl: RunConfig, target: RunConfig) -> None:
    assert width_of(bowl, 32) is None
    assert width_of(target, None) == 64
