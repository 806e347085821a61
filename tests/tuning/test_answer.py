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
    assert abs(found.fit.slope) < 1e-9


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
