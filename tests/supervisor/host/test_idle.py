"""When a host may end, as a table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stormsail.supervisor.host.idle import IdleClock


def test_it_ends_after_the_limit_without_use() -> None:
    clock = IdleClock.start(600.0, 100.0)
    assert not clock.should_end(699.9)
    assert clock.should_end(700.0)


def test_use_starts_the_limit_again() -> None:
    clock = IdleClock.start(600.0, 100.0).used(650.0)
    assert not clock.should_end(1249.0)
    assert clock.should_end(1250.0)


def test_a_live_run_counts_as_use_and_an_empty_look_does_not() -> None:
    clock = IdleClock.start(600.0, 0.0)
    assert not clock.looked(600.0, busy=True).should_end(1199.0)
    assert clock.looked(600.0, busy=False).should_end(600.0)


def test_it_looks_every_half_minute_and_oftener_where_the_limit_is_short() -> None:
    assert not IdleClock.start(600.0, 0.0).should_look(29.0)
    assert IdleClock.start(600.0, 0.0).should_look(30.0)
    assert IdleClock.start(2.0, 0.0).should_look(0.5)


@given(limit=st.floats(0.1, 1e5), now=st.floats(0.0, 1e6), looked=st.floats(0.0, 1e6))
def test_it_never_ends_without_a_look_at_the_same_moment(limit: float, now: float, looked: float) -> None:
    clock = IdleClock(limit, 0.0, looked)
    assert clock.should_look(now) or not clock.should_end(now)
