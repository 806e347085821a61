"""Rows and columns are taken out of a plane only where that gains something, and put back exactly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stormsail.platform.checkpoint.scales import Grid, restore, worth

RANDOM = np.random.default_rng(7)


def exponents(rows: int, columns: int) -> NDArray[np.uint8]:
    sums = RANDOM.integers(0, 30, (rows, 1)) + RANDOM.integers(0, 30, (1, columns))
    return (sums + RANDOM.integers(0, 3, (rows, columns))).astype(np.uint8).reshape(-1)


@pytest.mark.parametrize(("first", "count"), [(0, 9000), (31, 8900), (89, 8911), (5, 800)])
def test_what_was_taken_out_is_put_back(first: int, count: int) -> None:
    plane = exponents(100, 90)[first : first + count]
    grid = Grid(90, first)
    found = worth(plane, grid)
    assert found is not None
    left, sides = found
    assert sides.size == grid.sides(count)
    assert len(np.unique(left)) < len(np.unique(plane)) / 3
    assert np.array_equal(restore(left, grid, sides), plane)


def test_rows_without_anything_in_common_stay_as_they_are() -> None:
    assert worth(RANDOM.integers(0, 4, 9000, dtype=np.uint8), Grid(90)) is None


@pytest.mark.parametrize("columns", [1, 7, 5000])
def test_what_is_no_matrix_stays_as_it_is(columns: int) -> None:
    assert worth(exponents(100, 90), Grid(columns)) is None


@pytest.mark.parametrize(("first", "count", "rows"), [(0, 10, 1), (0, 11, 2), (9, 1, 1), (9, 2, 2)])
def test_a_row_that_is_touched_counts(first: int, count: int, rows: int) -> None:
    assert Grid(10, first).rows(count) == rows
