"""Which cells to measure next: every setting of clip and warm-up on the core, some spread evenly, or what Optuna proposes.

Optuna is asked from outside Tune, for one setting at a time: what it optimises is what the setting reached on the whole
core, over all learning rates, seeds and proxies, which no single trial knows. It gets three objectives and no weights
(multi-objective TPE). A proposal follows from the sweep's seed and the results alone, told anew each time in the order
in which they were proposed, so that a sweep that goes on proposes what it would have proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.tuning.objective import CellScore, rank
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Setting, all_settings, core_beta2s, core_cells, sobol_settings

_WORST = 1e6
_ASKS = 50
_STARTUP = 3  # drawn at random, before there is something to learn from


@dataclass(frozen=True, slots=True)
class Told:
    """A setting that was measured on the core, with the three figures to minimise.

    Attributes:
        setting: The setting.
        figures: Divergence rate, sensitivity, final loss of its best beta2; finite.
    """

    setting: Setting
    figures: tuple[float, float, float]


def cells_wanted(sweep: SweepConfig) -> int:
    """How many cells the sweep measures in all."""
    return _settings_wanted(sweep) * len(core_beta2s(sweep))


def next_cells(sweep: SweepConfig, proposed: Sequence[Sequence[Cell]], rows: Sequence[CellScore]) -> list[Cell]:
    """The next batch; empty when the search is over.

    Args:
        sweep: The sweep.
        proposed: The batches before, in order.
        rows: The scores of their cells, in any order.
    """
    if sweep.search.rest != "optuna":
        chosen = (
            all_settings(sweep.space)
            if sweep.search.rest == "grid"
            else sobol_settings(sweep.space, sweep.search.settings)
        )
        return [] if proposed else core_cells(sweep, chosen)
    known = list(dict.fromkeys(cell.setting for batch in proposed for cell in batch))
    if len(known) >= _settings_wanted(sweep):
        return []
    figures = [(setting, figures_on_core(setting, rows)) for setting in known]
    told = [Told(setting, reached) for setting, reached in figures if reached is not None]
    return core_cells(sweep, [propose(sweep, known, told)])


def figures_on_core(setting: Setting, rows: Sequence[CellScore]) -> tuple[float, float, float] | None:
    """What a setting reached with its best beta2, which is chosen with it; finite, worst for what is not known.

    None if no beta2 was measured whole: a fault says nothing about the setting.
    """
    whole = [rank(row) for row in rows if row.cell.setting == setting and not row.missing]
    if not whole:
        return None
    _, diverged, sensitivity, loss = min(whole)
    return (diverged, min(sensitivity, _WORST), min(loss, _WORST))


def propose(sweep: SweepConfig, known: Sequence[Setting], told: Sequence[Told]) -> Setting:
    """Ask Optuna for a setting that was not proposed yet; where it insists on known ones, the first of the others.

    Args:
        sweep: The sweep; at least one of its settings is not known.
        known: All that were proposed, in order.
        told: What those that were measured reached, in the same order.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["minimize"] * 3,
        sampler=optuna.samplers.TPESampler(seed=sweep.seeds[0] + len(known), n_startup_trials=_STARTUP),
    )
    grid = all_settings(sweep.space)
    warmups = sorted({one.warmup for one in grid})
    space: dict[str, optuna.distributions.BaseDistribution] = {
        "clip": optuna.distributions.CategoricalDistribution(list(dict.fromkeys(one.clip for one in grid))),
        "warmup": optuna.distributions.IntDistribution(0, len(warmups) - 1),  # its order means something
    }
    for one in told:
        params = {"clip": one.setting.clip, "warmup": warmups.index(one.setting.warmup)}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, values=list(one.figures)))
    for _ in range(_ASKS):
        asked = study.ask(space).params
        setting = Setting(asked["clip"], warmups[asked["warmup"]])
        if setting not in known:
            return setting
    return next(setting for setting in grid if setting not in known)


def _settings_wanted(sweep: SweepConfig) -> int:
    whole = len(all_settings(sweep.space))
    return whole if sweep.search.rest == "grid" else min(whole, sweep.search.settings)
