"""What is alike in the rows and columns of a matrix: typical exponents, taken out of the exponent plane; pure.

The second moments of a weight matrix come close to (scale of the row) x (scale of the column), so that an exponent is
mostly the sum of two. What is left after taking both away has half the entropy; of first moments a tenth goes. The
two sides are stored with the frame, so a reader adds and never estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.platform.checkpoint.planes import literal_bytes, sample

Bytes = NDArray[np.uint8]

_MIN_EDGE = 8  # fewer rows or columns have little in common, and cost as much to say
_LOOKS = 64  # elements that a typical exponent is estimated from


@dataclass(frozen=True, slots=True)
class Grid:
    """How elements lie in the rows of their tensor.

    Attributes:
        columns: Elements of one row.
        first: The column of the first element.
    """

    columns: int
    first: int = 0

    def rows(self, count: int) -> int:
        """Rows that `count` elements touch."""
        return -(-(self.first + count) // self.columns)

    def sides(self, count: int) -> int:
        """Bytes that describe the rows and columns of `count` elements."""
        return self.rows(count) + self.columns


def worth(plane: Bytes, grid: Grid) -> tuple[Bytes, Bytes] | None:
    """The plane without what is alike in it, and the sides; None where that gains nothing.

    Args:
        plane: The exponents.
        grid: How they lie.
    """
    rows = grid.rows(plane.size)
    if min(rows, grid.columns) < _MIN_EDGE:
        return None
    sides = _typical(_matrix(plane, grid))
    left = _shifted(plane, grid, np.uint8(0) - sides)
    some = sample(left)
    gained = (literal_bytes(sample(plane)) - literal_bytes(some)) * plane.size // some.size
    return (left, sides) if gained > sides.size else None


def restore(left: Bytes, grid: Grid, sides: Bytes) -> Bytes:
    """Undo `worth`: the plane."""
    return _shifted(left, grid, sides)


def _shifted(plane: Bytes, grid: Grid, sides: Bytes) -> Bytes:
    """Add each element's row and column modulo 256."""
    matrix = _matrix(plane, grid)
    rows = len(matrix)
    moved = sides[:rows, np.newaxis] + sides[np.newaxis, rows:]
    moved += matrix
    return moved.reshape(-1)[grid.first : grid.first + plane.size]


def _matrix(plane: Bytes, grid: Grid) -> Bytes:
    """Whole rows; where the first or the last is not, its ends are filled with a neighbour."""
    missing = grid.rows(plane.size) * grid.columns - grid.first - plane.size
    if grid.first or missing:
        plane = np.concatenate([np.full(grid.first, plane[0]), plane, np.full(missing, plane[-1])])
    return plane.reshape(-1, grid.columns)


def _typical(matrix: Bytes) -> Bytes:
    """Each row's typical exponent, and by how much each column's differs; integers, so the same on any machine."""
    some = matrix[:, :: max(1, matrix.shape[1] // _LOOKS)]
    rows = (2 * some.sum(axis=1, dtype=np.int64) // some.shape[1] + 1) // 2
    step = max(1, matrix.shape[0] // _LOOKS)
    some = matrix[::step]
    columns = some.sum(axis=0, dtype=np.int64) - rows[::step].sum()
    columns = (2 * columns // some.shape[0] + 1) // 2
    return np.concatenate([rows, columns]).astype(np.uint8)
