"""Which cells to measure next: the whole grid, a Sobol subset, or what Optuna proposes from the scores so far.

Optuna is asked from outside Tune: what it optimises is a cell's score over all learning rates, seeds and proxies, which no
single trial knows. It gets three objectives and no weights (multi-objective TPE). Each proposal follows from the
sweep's seed and the scores alone, so that a resumed sweep proposes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.tuning.objective import CellScore, rank
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, all_cells, sobol_cells

_WORST = 1e6
_ASKS_PER_CELL = 50


@dataclass(frozen=True, slots=True)
class Told:
    """A cell that was measured, with the three figures to minimise.

    Attributes:
        cell: The cell.
        figures: Divergence rate, sensitivity, final loss; finite.
    """

    cell: Cell
    figures: tuple[float, float, float]


def cells_wanted(sweep: SweepConfig) -> int:
    """How many cells the sweep measures in all."""
    whole = len(all_cells(sweep.space))
    return whole if sweep.search.method == "grid" else min(whole, sweep.search.cells)


def next_cells(sweep: SweepConfig, scores: Sequence[CellScore]) -> list[Cell]:
    """The next batch; empty when the search is over.

    Args:
        sweep: The sweep.
        scores: Of all cells that were proposed before.
    """
    left = cells_wanted(sweep) - len(scores)
    if left <= 0:
        return []
    if sweep.search.method == "grid":
        return all_cells(sweep.space)
    if sweep.search.method == "sobol":
        return sobol_cells(sweep.space, sweep.search.cells)
    told = [Told(score.cell, told_figures(score)) for score in scores]
    return propose(sweep, told, min(left, sweep.search.batch))


def told_figures(score: CellScore) -> tuple[float, float, float]:
    """A score's three objectives, with a finite worst value in place of what is missing."""
    _, divergence, sensitivity, loss = rank(score)
    return (divergence, min(sensitivity, _WORST), min(loss, _WORST))


def propose(sweep: SweepConfig, told: Sequence[Told], count: int) -> list[Cell]:
    """Ask Optuna for `count` cells that were not measured yet.

    Where it insists on known ones, the rest is filled from the grid, in order.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["minimize"] * 3,
        sampler=optuna.samplers.TPESampler(seed=sweep.seeds[0] + len(told), n_startup_trials=sweep.search.batch),
    )
    grid = all_cells(sweep.space)
    space: dict[str, optuna.distributions.BaseDistribution] = {
        "cell.beta2": optuna.distributions.CategoricalDistribution(sorted({cell.beta2 for cell in grid})),
        "cell.clip": optuna.distributions.CategoricalDistribution(sorted({cell.clip for cell in grid})),
        "cell.warmup": optuna.distributions.CategoricalDistribution(sorted({cell.warmup for cell in grid})),
    }
    for one in told:
        params = {"cell.beta2": one.cell.beta2, "cell.clip": one.cell.clip, "cell.warmup": one.cell.warmup}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, values=list(one.figures)))
    known = {one.cell for one in told}
    chosen: dict[Cell, None] = {}
    for _ in range(_ASKS_PER_CELL * count):
        if len(chosen) == count:
            break
        asked = study.ask(space).params
        cell = Cell(asked["cell.beta2"], asked["cell.clip"], asked["cell.warmup"])
        if cell not in known:
            chosen.setdefault(cell)
    for cell in grid:
        if len(chosen) < count and cell not in known:
            chosen.setdefault(cell)
    return list(chosen)
