"""The governor of the costly vitals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stormsail.workers.sampling import MOST_STEPS, Governor

STEP_S = 0.2


def fed(*, base_s: float, sample_s: float, budget: float = 0.01, times: int = 50, least: int = 10) -> Governor:
    governor = Governor(least, budget)
    for _ in range(times):
        governor = governor.learn(step_s=STEP_S, base_s=base_s, sample_s=sample_s)
    return governor


def test_with_room_in_the_budget_samples_come_as_often_as_asked() -> None:
    governor = fed(base_s=0.0005, sample_s=0.005)
    assert governor.interval == 10
    assert [step for step in range(31) if governor.samples(step)] == [0, 10, 20, 30]


def test_dear_samples_become_rarer_until_the_budget_holds() -> None:
    governor = fed(base_s=0.001, sample_s=0.05)
    assert governor.interval == 50
    assert governor.share <= 0.01 + 1e-9


def test_where_the_base_alone_is_beyond_the_budget_samples_get_a_quarter_of_it() -> None:
    governor = fed(base_s=0.01, sample_s=0.01)
    assert governor.interval == 20
    assert governor.share > 0.01


def test_however_dear_a_sample_is_it_is_taken_now_and_then() -> None:
    assert fed(base_s=0.0, sample_s=100.0).interval == MOST_STEPS


def test_one_hiccup_moves_little() -> None:
    governor = fed(base_s=0.001, sample_s=0.01)
    after = governor.learn(step_s=STEP_S, base_s=5.0, sample_s=None)
    assert after.base_s <= 1.5 * governor.base_s
    assert after.interval == governor.interval


def test_steps_that_nothing_is_known_of_teach_nothing() -> None:
    assert Governor(10, 0.01).learn(step_s=0.0, base_s=1.0, sample_s=1.0) == Governor(10, 0.01)


@given(st.lists(st.tuples(st.floats(1e-6, 100.0), st.floats(0.0, 10.0), st.none() | st.floats(0.0, 10.0)), max_size=40))
def test_equal_numbers_give_equal_decisions_within_the_limits(seen: list[tuple[float, float, float | None]]) -> None:
    one = other = Governor(7, 0.02)
    for step_s, base_s, sample_s in seen:
        one = one.learn(step_s=step_s, base_s=base_s, sample_s=sample_s)
        other = other.learn(step_s=step_s, base_s=base_s, sample_s=sample_s)
        assert one == other
        assert 7 <= one.interval <= MOST_STEPS
