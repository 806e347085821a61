"""When the next message goes out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.ears import an_alert

from stormsail.platform.alerts.alert import Level
from stormsail.platform.alerts.pacing import (
    Outbox,
    Pace,
    add,
    begin,
    due_s,
    failed,
    given_up,
    hopeless,
    refused,
    succeeded,
)

PACE = Pace(group_s=5.0, every_s=60.0, give_up_s=3600.0)


def sent_once(now_s: float) -> Outbox:
    return succeeded(begin(add(Outbox(), an_alert(), now_s)), now_s)


def test_nothing_to_say_is_never_due() -> None:
    assert due_s(Outbox(), PACE) is None


def test_the_first_message_waits_only_for_its_group() -> None:
    box = add(add(Outbox(), an_alert(1), 100.0), an_alert(2), 103.0)
    assert due_s(box, PACE) == 105.0
    assert begin(box).sending[0].count == 2


def test_later_messages_keep_their_distance_unless_a_person_is_needed() -> None:
    box = add(sent_once(100.0), an_alert(2), 101.0)
    assert due_s(box, PACE) == 160.0
    assert due_s(add(box, an_alert(3, key="end", level=Level.PAGE), 102.0), PACE) == 106.0


def test_while_one_is_sent_the_next_waits() -> None:
    box = add(begin(add(Outbox(), an_alert(1), 0.0)), an_alert(2), 1.0)
    assert due_s(box, PACE) is None


def test_a_failed_message_waits_again_with_what_has_come_since() -> None:
    box = failed(add(begin(add(Outbox(), an_alert(1), 0.0)), an_alert(2), 1.0), PACE, 10.0, None)
    assert box.waiting[0].about == (1, 2)
    assert due_s(box, PACE) == 11.0


def test_pauses_between_tries_grow_to_a_limit_and_honour_what_was_asked_for() -> None:
    box, pauses = add(Outbox(), an_alert(), 0.0), []
    for _ in range(12):
        box = failed(begin(box), PACE, 0.0, None)
        pauses.append(box.retry_s)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 300.0
    for asked_s, waited_s in ((30.0, 30.0), (900.0, 900.0), (1e9, PACE.give_up_s)):
        assert failed(begin(add(Outbox(), an_alert(), 0.0)), PACE, 0.0, asked_s).retry_s == waited_s


def test_one_success_forgets_the_failures() -> None:
    box = succeeded(begin(failed(begin(add(Outbox(), an_alert(), 0.0)), PACE, 0.0, None)), 5.0)
    assert (box.failures, box.retry_s, box.empty) == (0, 0.0, True)


def test_what_failed_for_too_long_is_given_up() -> None:
    box = failed(begin(add(Outbox(), an_alert(), 0.0)), PACE, 1.0, None)
    assert not hopeless(box, PACE, 3600.0)
    assert hopeless(box, PACE, 3601.0) == box.waiting
    left = given_up(box, box.waiting, 3601.0)
    assert (left.empty, left.failures, dict(left.came_s)) == (True, 0, {})
    assert not hopeless(add(Outbox(), an_alert(), 0.0), PACE, 1e9)


def test_what_has_just_come_is_not_given_up_with_what_is_old() -> None:
    box = failed(begin(add(Outbox(), an_alert(1), 0.0)), PACE, 1.0, None)
    box = add(add(box, an_alert(2, key="end"), 3590.0), an_alert(3, key="late"), 3595.0)
    old = hopeless(box, PACE, 3601.0)
    assert [alert.about for alert in old] == [(1,)]
    left = given_up(box, old, 3601.0)
    assert [alert.about for alert in left.waiting] == [(2,), (3,)]
    assert (left.since_s, left.failures) == (3590.0, 1)


def test_one_that_comes_again_is_news() -> None:
    box = failed(begin(add(Outbox(), an_alert(1), 0.0)), PACE, 1.0, None)
    assert not hopeless(add(box, an_alert(2), 3000.0), PACE, 3601.0)


def test_a_refused_message_does_not_take_the_next_one_with_it() -> None:
    box = refused(add(begin(add(Outbox(), an_alert(1), 0.0)), an_alert(2), 1.0), 2.0)
    assert [alert.about for alert in box.waiting] == [(2,)]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 30.0)), max_size=60))
def test_nothing_is_lost_or_told_twice_whatever_happens(story: list[tuple[int, float]]) -> None:
    box, now_s, told, number = Outbox(), 0.0, [], 0
    for what, pause_s in story:
        now_s += pause_s
        if what == 0:
            number += 1
            box = add(box, an_alert(number, key=f"key {number % 3}"), now_s)
        elif what == 1 and (due := due_s(box, PACE)) is not None and due <= now_s:
            box = begin(box)
        elif what == 2 and box.sending:
            told += [n for alert in box.sending for n in alert.about]
            box = succeeded(box, now_s)
        elif what == 3 and box.sending:
            box = failed(box, PACE, now_s, None)
        assert box.sending or set(box.came_s) == {(alert.run, alert.key) for alert in box.waiting}
    left = [n for alert in (*box.waiting, *box.sending) for n in alert.about]
    assert sorted(told + left) == list(range(1, number + 1))
