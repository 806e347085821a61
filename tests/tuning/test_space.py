"""Cells and trials: the grid, Sobol's sequence, names."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import qmc  # type: ignore[import-untyped]  # scipy comes without types

from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import (
    Cell,
    Setting,
    Trial,
    all_settings,
    control_trials,
    core_beta2s,
    core_cells,
    sobol,
    sobol_settings,
    trials_of,
)

Make = Callable[..., SweepConfig]


def test_the_grid_has_every_combination_once(make_sweep: Make) -> None:
    sweep = make_sweep()
    cells = core_cells(sweep, all_settings(sweep.space))
    assert len(cells) == len(set(cells)) == 4 * 2 * 2
    assert {cell.setting for cell in cells} == set(all_settings(sweep.space))


def test_what_is_listed_twice_is_trained_once(make_sweep: Make) -> None:
    sweep = make_sweep(space={"clip": [1.0, "off", "off", 1], "warmup": [0.0, 0.0]})
    assert all_settings(sweep.space) == [Setting("1", 0.0), Setting("off", 0.0)]


@pytest.mark.parametrize("dimensions", [1, 2])
def test_the_sequence_is_sobols(dimensions: int) -> None:
    ours = np.array(list(itertools.islice(sobol(dimensions), 64)))
    assert np.array_equal(ours, qmc.Sobol(dimensions, scramble=False).random(64))


@pytest.mark.parametrize("count", [1, 5, 12, 99])
def test_sobol_chooses_so_many_different_settings(make_sweep: Make, count: int) -> None:
    space = make_sweep(space={"clip": [0.5, 1.0, 2.0, "off", "off"], "warmup": [0.0, 0.01, 0.05]}).space
    chosen = sobol_settings(space, count)
    assert len(chosen) == len(set(chosen)) == min(count, 12)
    assert set(chosen) <= set(all_settings(space))


def test_sobol_spreads_over_every_value_of_an_axis(make_sweep: Make) -> None:
    chosen = sobol_settings(make_sweep(space={"clip": [0.5, 1.0, 2.0, "off"], "warmup": [0.0, 0.05]}).space, 4)
    assert {one.clip for one in chosen} == {"0.5", "1", "2", "off"}
    assert {one.warmup for one in chosen} == {0.0, 0.05}


def test_a_sobol_core_spreads_beta2_by_half_life_and_more_points_keep_the_earlier_ones(make_sweep: Make) -> None:
    few, many = (core_beta2s(make_sweep(search={"core": "sobol", "betas": count})) for count in (4, 16))
    assert many[:4] == few
    assert few == pytest.approx([0.9, 0.99, 0.99684, 0.9684], abs=1e-4)
    assert len(set(many)) == 16
    assert all(0.9 <= beta2 < 0.999 for beta2 in many)
    alone = make_sweep(space={"beta2": [0.95]}, search={"core": "sobol"})
    assert core_beta2s(alone) == [0.95]


@pytest.mark.parametrize("core", ["grid", "sobol"])
def test_every_cell_is_trained_over_the_whole_curve_with_all_seeds_on_each_proxy(make_sweep: Make, core: str) -> None:
    sweep = make_sweep(search={"core": core, "betas": 5})
    cells = core_cells(sweep, [Setting("1", 0.05)])
    trials = trials_of(sweep, cells)
    assert len({trial.id for trial in trials}) == len(trials) == len(cells) * 3 * 2
    for cell in cells:
        assert {trial.lr for trial in trials if trial.cell == cell} == {0.005, 0.01, 0.02}


def test_the_control_is_trained_beyond_the_centre(make_sweep: Make) -> None:
    trials = control_trials(make_sweep(control={"lr_factor": 64}))
    assert [trial.seed for trial in trials] == [1, 2]
    assert {(trial.cell, trial.lr, trial.control) for trial in trials} == {(Cell(0.999, "off", 0.0), 0.64, True)}


def test_a_trial_keeps_its_name_and_shares_it_with_no_other() -> None:
    trial = Trial("w32", Cell(0.95, "1", 0.05), 0.01, 1)
    assert trial.id == Trial("w32", Cell(0.95, "1", 0.05), 0.01, 1).id
    assert trial.id != Trial("w32", Cell(0.95, "1", 0.05), 0.01, 1, control=True).id


def test_a_clip_is_a_norm_a_percentile_or_nothing() -> None:
    assert [Cell(0.9, clip, 0.0).clip_norm for clip in ("0.5", "off", "p90")] == [0.5, None, None]
    assert [Cell(0.9, clip, 0.0).clip_percentile for clip in ("0.5", "off", "p90")] == [None, None, 90.0]
