"""The best distance between two keyframes is the one that moves the fewest bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.interval import best_interval, bytes_per_step

SIZES = st.floats(0.1, 100.0)
STEPS = st.floats(10.0, 1e6)


def test_one_failure_in_a_thousand_steps_asks_for_some_120() -> None:
    assert best_interval(keyframe_bytes=9.9, log_bytes=1.37, steps_per_failure=1000) == 120


def test_it_is_never_below_one() -> None:
    assert best_interval(keyframe_bytes=0.001, log_bytes=100.0, steps_per_failure=1) == 1


@given(SIZES, SIZES, STEPS)
def test_no_other_distance_moves_fewer_bytes(keyframe: float, log: float, failure: float) -> None:
    sizes = {"keyframe_bytes": keyframe, "log_bytes": log, "steps_per_failure": failure}
    best = best_interval(**sizes)
    here = bytes_per_step(best, **sizes)
    for other in (best - 1, best + 1, best // 2, best * 2):
        if other >= 1:
            assert here <= bytes_per_step(other, **sizes) * (1 + 1e-9)
