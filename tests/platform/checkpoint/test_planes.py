"""A plane is stored as its bytes deserve, and comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from stormsail.platform.checkpoint.planes import Method, load_plane, sample, store_plane
from stormsail.platform.errors import CheckpointError

RANDOM = np.random.default_rng(5)
NOISE = RANDOM.integers(0, 256, 50_000, dtype=np.uint8)
EXPONENTS = (120 + RANDOM.normal(0, 1.5, 50_000)).astype(np.uint8)
WORDS = np.resize(np.frombuffer(Path(__file__).read_bytes(), np.uint8), 1 << 20)


@given(arrays.arrays(np.uint8, st.integers(1, 2000)))
def test_any_plane_comes_back(plane: NDArray[np.uint8]) -> None:
    method, body = store_plane(plane)
    assert np.array_equal(load_plane(memoryview(body), method, plane.size), plane)
    assert len(body) <= plane.size


@pytest.mark.parametrize(
    ("plane", "method"),
    [(NOISE, Method.RAW), (EXPONENTS, Method.LITERALS), (WORDS, Method.ZSTD)],
    ids=["noise", "exponents", "text"],
)
def test_each_kind_of_plane_gets_its_method(plane: NDArray[np.uint8], method: Method) -> None:
    assert store_plane(plane)[0] is method


def test_a_plane_of_another_size_is_refused() -> None:
    method, body = store_plane(WORDS)
    with pytest.raises(CheckpointError, match="another size"):
        load_plane(memoryview(body), method, WORDS.size - 1)


def test_a_sample_is_small_and_looks_everywhere() -> None:
    plane = np.arange(1 << 20, dtype=np.uint32).astype(np.uint8)
    assert sample(plane).size <= 1 << 15
    assert sample(plane[:1000]).size == 1000
