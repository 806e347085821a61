"""The rows of the sweeps' benchmark, without its trials."""

from __future__ import annotations

import json

import pytest
from benchmarks.sweeps import Edges, Throughput
from checkpoint_rows.row import Row

from stormsail.tuning.edge import Edge

GRID = tuple(0.01 * 2**exponent for exponent in range(6))
KEYS = {"figure", "unit", "ours", "reference", "reference_name", "ratio", "bar", "aim", "pass"}


def verdicts(rows: list[Row]) -> list[object]:
    assert all(row.keys() == KEYS for row in rows)
    json.dumps(rows, allow_nan=False)
    return [row["pass"] for row in rows if row["bar"] is not None]


@pytest.mark.parametrize(("tune_s", "passed"), [(11.0, True), (11.2, False)])
def test_throughput_is_judged_by_its_ratio_to_the_same_by_hand(tune_s: float, passed: bool) -> None:
    found = Throughput(16, {"hand": 10.0, "tune": tune_s}, {"hand": 0.6, "tune": 0.55})
    assert verdicts(found.rows()) == [passed]


def edges(*ends: float | None, open_end: bool = False) -> Edges:
    *narrow, wide = (Edge(lr, GRID[0] if lr is None else 2 * lr) for lr in ends)
    wide = Edge(wide.lr, None) if open_end else wide
    return Edges(GRID, dict(zip((16, 32, 64, 256), [*narrow, wide], strict=True)))


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        (edges(0.08, 0.08, 0.08, 0.04), True),
        (edges(0.08, 0.08, 0.08, 0.02), False),
        (edges(0.08, 0.08, 0.08, 0.08, open_end=True), False),  # nobody has seen it
        (edges(None, None, None, 0.08), False),
        (edges(0.08, 0.08, None, 0.08), False),  # two widths tell no drift
    ],
)
def test_the_edge_is_judged_in_steps_of_the_grid_and_must_have_been_seen(found: Edges, passed: bool) -> None:
    assert verdicts(found.rows()) == [passed]
