"""Cells and trials: the grid, Sobol's sequence, names."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import qmc  # type: ignore[import-untyped]  # scipy comes without types

from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial, all_cells, control_trials, sobol, sobol_cells, trials_of

Make = Callable[..., SweepConfig]


def test_the_grid_has_every_combination_once(make_sweep: Make) -> None:
    cells = all_cells(make_sweep().space)
    assert len(cells) == len(set(cells)) == 4 * 2 * 2


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_sequence_is_sobols(dimensions: int) -> None:
    ours = np.array(list(itertools.islice(sobol(dimensions), 64)))
    assert np.array_equal(ours, qmc.Sobol(dimensions, scramble=False).random(64))


@pytest.mark.parametrize("count", [1, 5, 16, 99])
def test_sobol_chooses_so_many_different_cells_of_the_grid(make_sweep: Make, count: int) -> None:
    space = make_sweep().space
    chosen = sobol_cells(space, count)
    assert len(chosen) == len(set(chosen)) == min(count, 16)
    assert set(chosen) <= set(all_cells(space))


def test_sobol_spreads_over_every_value_of_an_axis(make_sweep: Make) -> None:
    chosen = sobol_cells(make_sweep().space, 8)
    assert {cell.beta2 for cell in chosen} == {0.9, 0.95, 0.98, 0.999}
    assert {cell.clip for cell in chosen} == {"1", "off"}


def test_every_cell_is_trained_over_all_rates_and_seeds_on_each_proxy(make_sweep: Make) -> None:
    sweep = make_sweep()
    trials = trials_of(sweep, all_cells(sweep.space))
    assert len({trial.id for trial in trials}) == len(trials) == 16 * 3 * 2
    assert {trial.lr for trial in trials} == {0.005, 0.01, 0.02}


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
