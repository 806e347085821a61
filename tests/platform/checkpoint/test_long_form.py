"""A stretch of the long form: histories with faults, each from its own seed."""

from __future__ import annotations

import pytest
from tests.platform.checkpoint.long_form import run_block, run_case

pytestmark = pytest.mark.slow  # hundreds of histories


def test_no_promise_is_broken_in_any_history() -> None:
    tally = run_block(range(60))
    assert tally["cases"] == 60
    assert all(tally[kind] for kind in ("difference", "keyframe", "restored", "detected", "dying", "pruned", "late"))


def test_no_promise_is_broken_in_hundreds_of_histories() -> None:
    """By hand, thousands: `python -m tests.platform.checkpoint.long_form --cases 100000`."""
    tally = run_block(range(2000, 2250))
    kinds = ("fallen back", "line untold", "stall", "missed", "again", "late", "folded", "dropped", "swept in a fold")
    assert all(tally[kind] for kind in kinds)
    assert tally["collector died"] + tally["sweeper died"] + tally["late, refused"] > 0  # rare, each by itself


def test_a_seed_is_one_history() -> None:
    assert run_case(7) == run_case(7)
