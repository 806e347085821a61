"""A short stretch of the long form: three hundred histories with faults, each from its own seed."""

from __future__ import annotations

import pytest
from tests.platform.checkpoint.long_form import run_block, run_case

pytestmark = pytest.mark.slow  # hundreds of histories


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_no_promise_is_broken_in_any_history(first: int) -> None:
    tally = run_block(range(first, first + 100))
    assert tally["cases"] == 100
    assert all(tally[kind] for kind in ("difference", "keyframe", "restored", "detected", "dying", "pruned"))


def test_a_seed_is_one_history() -> None:
    assert run_case(7) == run_case(7)
