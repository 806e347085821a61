"""Which cells come next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stormsail.platform.storage.memory import MemoryStore
from stormsail.tuning.objective import CellScore, Rate
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Setting, all_settings, core_beta2s, core_cells
from stormsail.tuning.suggest import Told, cells_wanted, figures_on_core, next_cells, propose

Make = Callable[..., SweepConfig]
SPACE = {"beta2": [0.9, 0.95], "clip": [0.5, 1.0, 2.0, "off"], "warmup": [0.0, 0.01, 0.05]}


def score(
    cell: Cell, *, stable: int = 2, loss: float | None = 2.0, sensitivity: float | None = None, missing: int = 0
) -> CellScore:
    known: dict[str, Any] = {
        "spike_loss": 0.0, "spike_norm": 0.0, "incidents_per_10k": 0.0, "max_logit": None, "update_rms_p99": None,
        "clip_rate": 0.0, "best_lr": 0.01, "final_sd": None, "wall_s": 1.0,
    }  # fmt: skip
    rate = Rate(0.0, 0.0, 1.0)
    success, diverged = Rate(stable / 2, 0.0, 1.0), Rate(1.0 - stable / 2, 0.0, 1.0)
    return CellScore(
        cell, 1, 2, missing, stable, success, diverged, rate, lr_sensitivity=sensitivity, final_loss=loss, **known
    )


def measure(cells: Sequence[Cell]) -> list[CellScore]:
    """A task whose best setting is clip 2 with the longest warm-up."""
    badness = {"0.5": 0.5, "1": 0.2, "2": 0.0, "off": 1.0}
    return [score(cell, sensitivity=badness[cell.clip] + 1.0 - cell.warmup, loss=2.0 + cell.beta2) for cell in cells]


def searched(sweep: SweepConfig, proposed: list[list[Cell]]) -> list[list[Cell]]:
    """All batches of a search that goes on from these."""
    batches = list(proposed)
    while cells := next_cells(sweep, batches, measure([cell for batch in batches for cell in batch])):
        batches.append(cells)
    return batches


@pytest.mark.parametrize("rest", ["grid", "sobol"])
def test_what_needs_no_results_is_one_batch(make_sweep: Make, rest: str) -> None:
    sweep = make_sweep(space=SPACE, search={"rest": rest, "settings": 5})
    first = next_cells(sweep, [], [])
    assert len(set(first)) == len(first) == cells_wanted(sweep) == {"grid": 24, "sobol": 10}[rest]
    assert next_cells(sweep, [first], []) == []


def test_optuna_proposes_one_setting_at_a_time_each_on_the_whole_core(make_sweep: Make) -> None:
    sweep = make_sweep(space=SPACE, search={"rest": "optuna", "settings": 7, "core": "sobol", "betas": 3})
    batches = searched(sweep, [])
    settings = [{cell.setting for cell in batch} for batch in batches]
    assert [len(one) for one in settings] == [1] * 7
    assert len(set.union(*settings)) == 7
    assert all([cell.beta2 for cell in batch] == core_beta2s(sweep) for batch in batches)
    assert sum(len(batch) for batch in batches) == cells_wanted(sweep)


def test_a_search_that_goes_on_from_its_store_proposes_what_it_would_have(make_sweep: Make) -> None:
    sweep = make_sweep(space=SPACE, search={"rest": "optuna", "settings": 6})
    whole = searched(sweep, [])
    for cut in (0, 1, 4):
        records = SweepRecords(MemoryStore())
        for number, cells in enumerate(whole[:cut]):
            records.put_proposed(number, cells)
        assert searched(sweep, records.proposed()) == whole
    assert searched(make_sweep(space=SPACE, seeds=[77, 78], search=sweep.search.model_dump()), []) != whole


def test_the_results_decide_what_is_proposed_and_lead_to_the_best(make_sweep: Make) -> None:
    """Over many seeds the best of twelve settings is among the first six more often than by chance, which is half."""
    found = 0
    for seed in range(20):
        sweep = make_sweep(space=SPACE, seeds=[1000 * seed], search={"rest": "optuna", "settings": 6})
        found += Setting("2", 0.05) in {cell.setting for batch in searched(sweep, []) for cell in batch}
    assert found >= 13


def test_the_last_setting_is_found_and_then_the_search_ends(make_sweep: Make) -> None:
    sweep = make_sweep(space=SPACE, search={"rest": "optuna", "settings": 99})
    settings = all_settings(sweep.space)
    told = [Told(setting, (0.0, 0.1, 2.0)) for setting in settings[:-1]]
    assert propose(sweep, settings[:-1], told) == settings[-1]
    everything = [core_cells(sweep, [setting]) for setting in settings]
    assert next_cells(sweep, everything, []) == []
    assert cells_wanted(sweep) == 24


def test_a_setting_is_worth_what_its_best_beta2_reached_and_a_fault_is_no_worth() -> None:
    setting = Setting("1", 0.0)
    rows = [
        score(Cell(0.9, "1", 0.0), stable=1, loss=1.0),
        score(Cell(0.95, "1", 0.0), sensitivity=0.2),
        score(Cell(0.98, "1", 0.0), sensitivity=0.1, missing=1),
        score(Cell(0.95, "off", 0.0), sensitivity=0.0),
    ]
    assert figures_on_core(setting, rows) == (0.0, 0.2, 2.0)
    assert figures_on_core(setting, rows[2:3]) is None
    assert figures_on_core(setting, [score(Cell(0.9, "1", 0.0), stable=0, loss=None)]) == (1.0, 1e6, 1e6)
