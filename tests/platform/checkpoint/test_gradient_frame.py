"""Gradients come back bit by bit, small where they can be, and nothing is believed."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stormsail.platform.checkpoint import gradient_frame
from stormsail.platform.checkpoint.gradient_frame import Bits, decode_gradient, encode_gradient
from stormsail.platform.checkpoint.rounding import to_bf16
from stormsail.platform.checkpoint.scales import Grid
from stormsail.platform.errors import CheckpointError, InternalError


def normal(count: int) -> Bits:
    values = np.random.default_rng(0).normal(0, 1e-3, count).astype(np.float32)
    return to_bf16(values.view(np.uint32))


def alike(rows: int, columns: int) -> Bits:
    """A matrix whose rows and columns have scales of their own, as gradients of linear layers have."""
    random = np.random.default_rng(1)
    scales = np.exp(random.normal(0, 3, (rows, 1)) + random.normal(0, 3, (1, columns)))
    values = (random.normal(0, 1, (rows, columns)) * scales).astype(np.float32).reshape(-1)
    return to_bf16(values.view(np.uint32))


def joined(bits: Bits) -> bytes:
    return b"".join(encode_gradient(bits))


@given(arrays.arrays(np.uint16, st.integers(0, 300)))
def test_any_bits_come_back(bits: Bits) -> None:
    assert np.array_equal(decode_gradient(joined(bits), bits.size), bits)


def test_every_bf16_value_comes_back() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(decode_gradient(joined(bits), bits.size), bits)


def test_a_shard_of_several_blocks_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_frame, "CHUNK_ELEMENTS", 1000)
    bits = alike(35, 100)
    for grid in (None, Grid(100), Grid(70, 3)):
        stored = b"".join(encode_gradient(bits, [(bits.size, grid)]))
        assert np.array_equal(decode_gradient(stored, bits.size), bits)


def test_a_gradient_takes_little_more_than_its_mantissas() -> None:
    bits = normal(1 << 18)
    assert len(joined(bits)) < 1.38 * bits.size


def test_what_rows_and_columns_share_is_stored_once() -> None:
    bits, grid = alike(200, 100), Grid(100)
    stored = b"".join(encode_gradient(bits, [(bits.size, grid)]))
    assert np.array_equal(decode_gradient(stored, bits.size), bits)
    assert len(stored) < 0.9 * len(joined(bits))


@given(st.data())
def test_shards_of_any_parameters_come_back(data: st.DataObject) -> None:
    cuts: list[tuple[int, Grid | None]] = []
    for _ in range(data.draw(st.integers(0, 4))):
        columns = data.draw(st.integers(1, 40))
        count, first = data.draw(st.integers(0, 900)), data.draw(st.integers(0, columns - 1))
        cuts.append((count, data.draw(st.sampled_from([None, Grid(columns, first)]))))
    bits = alike(100, 40)[: sum(count for count, _ in cuts)]
    stored = b"".join(encode_gradient(bits, cuts))
    assert np.array_equal(decode_gradient(stored, bits.size), bits)


def test_cuts_that_do_not_add_up_are_a_bug() -> None:
    with pytest.raises(InternalError):
        encode_gradient(normal(10), [(9, None)])


def test_no_gradient_takes_nothing() -> None:
    assert joined(np.zeros(0, np.uint16)) == b""


@given(st.data())
def test_a_cut_is_refused(data: st.DataObject) -> None:
    stored = joined(normal(5000))
    with pytest.raises(CheckpointError):
        decode_gradient(stored[: data.draw(st.integers(0, len(stored) - 1))], 5000)


@given(st.data())
def test_changed_bytes_never_do_worse_than_a_refusal_or_other_values(data: st.DataObject) -> None:
    stored = bytearray(joined(normal(5000)))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        assert decode_gradient(bytes(stored), 5000).size == 5000


@pytest.mark.parametrize("count", [4999, 5001, 0])
def test_another_number_of_values_is_refused(count: int) -> None:
    with pytest.raises(CheckpointError):
        decode_gradient(joined(normal(5000)), count)
