"""What a repair does to the list of learning-rate events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.messages import LrEvent
from stormsail.supervisor.lr_cuts import cut, hold_longer
from stormsail.workers.schedule import lr_factor


def event(step: int, released_step: int | None, factor: float = 0.8, generation: int = 1) -> LrEvent:
    return LrEvent(step=step, factor=factor, generation=generation, released_step=released_step)


def test_a_held_event_is_held_longer() -> None:
    assert hold_longer((event(40, 300),), now_step=60, released_step=320) == (event(40, 320),)


def test_an_event_is_never_held_shorter() -> None:
    assert hold_longer((event(40, 400),), now_step=60, released_step=320) == (event(40, 400),)


def test_a_released_event_stays_as_it_was() -> None:
    assert hold_longer((event(40, 50),), now_step=60, released_step=320) == (event(40, 50),)


def test_an_event_that_is_held_for_ever_stays_so() -> None:
    assert hold_longer((event(40, None),), now_step=60, released_step=320) == (event(40, None),)


def test_a_second_reduction_multiplies_from_the_first_step_on() -> None:
    done = cut((event(40, 300),), event(30, 400), now_step=60, floor=0.5, ramp_steps=10)
    assert done is not None
    events, _ = done
    assert events == (event(30, 300), event(30, 400))
    assert lr_factor(30, events, floor=0.5, ramp_steps=10) == pytest.approx(0.64)


def test_a_released_event_is_not_moved() -> None:
    done = cut((event(40, 50),), event(30, 400), now_step=60, floor=0.5, ramp_steps=10)
    assert done is not None
    assert done[0][0] == event(40, 50)


def test_the_last_reduction_before_the_floor_is_made_milder() -> None:
    done = cut((event(1, None, 0.6),), event(30, 400), now_step=60, floor=0.5, ramp_steps=10)
    assert done is not None
    events, added = done
    assert added.factor == pytest.approx(0.5 / 0.6)
    assert lr_factor(30, events, floor=0.5, ramp_steps=10) == pytest.approx(0.5)


def test_at_the_floor_nothing_can_be_cut() -> None:
    assert cut((event(1, None, 0.5),), event(30, 400), now_step=60, floor=0.5, ramp_steps=10) is None


@given(st.integers(0, 12), st.floats(0.1, 0.99), st.floats(0.05, 0.99))
def test_reductions_end_at_the_floor_and_never_pass_it(cuts: int, factor: float, floor: float) -> None:
    events: tuple[LrEvent, ...] = ()
    for _ in range(cuts):
        before = lr_factor(10, events, floor=0.0, ramp_steps=5)
        done = cut(events, event(10, 100, factor), now_step=20, floor=floor, ramp_steps=5)
        if done is None:
            assert before == pytest.approx(floor)
            break
        events = done[0]
        assert lr_factor(10, events, floor=0.0, ramp_steps=5) >= floor - 1e-9
