"""An entry of the gradient log holds a step exactly, and any changed byte shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.log_entry import LoggedStep, pack_entry, unpack_entry
from stormsail.platform.errors import CheckpointError

BITS = np.random.default_rng(0).integers(0, 1 << 16, 700).astype(np.uint16)


def step(**changes: Any) -> LoggedStep:
    values: dict[str, Any] = {
        "generation": 3,
        "step": 41,
        "rank": 1,
        "world_size": 2,
        "layout": "a" * 32,
        "outcome": "applied",
        "elements": BITS.size,
        "scale": 0.1 + 0.2,
        "rates": (1e-3, 1e-3 / 3),
        "applied": 40,
        "tokens": 10**12,
        "state_sum": 2**64 - 1,
        "seen": {"step": 41, "loss": 2.5},
        "row": {"outcome": "applied"},
    }
    return LoggedStep(**{**values, **changes})


def test_a_step_comes_back_with_its_gradient() -> None:
    found, bits = unpack_entry(pack_entry(step(), BITS), "log")
    assert found == step()
    assert np.array_equal(bits, BITS)


def test_a_step_without_an_update_needs_no_gradient_and_may_hold_numbers_that_are_none() -> None:
    dropped = step(outcome="dropped", elements=0, seen={"loss": math.nan, "grad_norm": math.inf})
    found, bits = unpack_entry(pack_entry(dropped, BITS[:0]), "log")
    assert bits.size == 0
    assert math.isnan(float(str(found.seen["loss"])))
    assert found.seen["grad_norm"] == math.inf


@given(st.data())
def test_a_flipped_bit_is_refused_and_the_object_named(data: st.DataObject) -> None:
    stored = bytearray(pack_entry(step(), BITS))
    at = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[at // 8] ^= 1 << at % 8
    with pytest.raises(CheckpointError, match="log/7") as caught:
        unpack_entry(bytes(stored), "log/7")
    assert caught.value.objects == ("log/7",)


@given(st.data())
def test_a_cut_or_an_addition_is_refused(data: st.DataObject) -> None:
    stored = pack_entry(step(), BITS)
    changed = data.draw(st.integers(0, len(stored) - 1).map(lambda stop: stored[:stop]) | st.just(stored + b"\0"))
    with pytest.raises(CheckpointError):
        unpack_entry(changed, "log")


def test_more_values_than_announced_are_refused() -> None:
    with pytest.raises(CheckpointError):
        unpack_entry(pack_entry(step(elements=BITS.size + 1), BITS), "log")
