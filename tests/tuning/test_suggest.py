"""Which cells come next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stormsail.tuning.objective import CellScore, Interval
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, all_cells
from stormsail.tuning.suggest import Told, cells_wanted, next_cells, propose, told_figures

Make = Callable[..., SweepConfig]


def score(cell: Cell, *, stable: int = 2, loss: float | None = 2.0) -> CellScore:
    known: dict[str, Any] = {
        "spike_loss": 0.0, "spike_norm": 0.0, "incidents_per_10k": 0.0, "max_logit": None, "update_rms_p99": None,
        "clip_rate": 0.0, "best_lr": 0.01, "final_sd": None, "wall_s": 1.0,
    }  # fmt: skip
    return CellScore(cell, 1, 2, 0, stable, Interval(0.0, 1.0), lr_sensitivity=None, final_loss=loss, **known)


def test_the_grid_is_one_batch(make_sweep: Make) -> None:
    sweep = make_sweep()
    assert next_cells(sweep, []) == all_cells(sweep.space)
    assert next_cells(sweep, [score(cell) for cell in all_cells(sweep.space)]) == []


def test_sobol_measures_as_many_as_asked(make_sweep: Make) -> None:
    sweep = make_sweep(search={"method": "sobol", "cells": 5})
    assert len(next_cells(sweep, [])) == cells_wanted(sweep) == 5


def test_a_proposal_follows_from_the_scores_alone_and_repeats_nothing(make_sweep: Make) -> None:
    sweep = make_sweep(search={"method": "optuna", "cells": 6, "batch": 4})
    first = next_cells(sweep, [])
    assert first == next_cells(sweep, [])
    assert len(set(first)) == 4
    told = [score(cell, stable=2 if cell.beta2 < 0.99 else 0) for cell in first]
    second = next_cells(sweep, told)
    assert second == next_cells(sweep, told)
    assert len(second) == 2
    assert not set(first) & set(second)


def test_the_last_cells_are_found_however_few_are_left(make_sweep: Make) -> None:
    sweep = make_sweep(search={"method": "optuna", "cells": 16})
    cells = all_cells(sweep.space)
    told = [Told(cell, (0.0, 0.1, 2.0)) for cell in cells[:-1]]
    assert propose(sweep, told, 1) == cells[-1:]


def test_optuna_is_told_finite_figures_only() -> None:
    assert told_figures(score(Cell(0.9, "1", 0.0), stable=0, loss=None)) == (1.0, 1e6, 1e6)
