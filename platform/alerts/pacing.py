"""When the next message goes out: grouping, rate limit, and retries with growing pauses; pure.

One outbox per channel. Time comes as an argument, in seconds of any steady clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stormsail.platform.alerts.alert import Alert, Level, join

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a channel may speak.

    Attributes:
        group_s: An alert waits this long for others that belong to the same message.
        every_s: Least time between two messages; only what needs a person at once does not wait for it.
        give_up_s: An alert that could not be delivered for this long is given up.
    """

    group_s: float
    every_s: float
    give_up_s: float


@dataclass(frozen=True, slots=True)
class Outbox:
    """What a channel has to say, and how its last tries went.

    Attributes:
        waiting: Alerts for the next message.
        sending: Alerts of the message that is being sent.
        came_s: When the newest of each came, by run and key.
        since_s: When the oldest of both came.
        sent_s: When the last message went out, or None.
        failures: Tries that failed in a row.
        retry_s: No try before this.
    """

    waiting: tuple[Alert, ...] = ()
    sending: tuple[Alert, ...] = ()
    came_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    since_s: float = 0.0
    sent_s: float | None = None
    failures: int = 0
    retry_s: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.waiting or self.sending)


def add(box: Outbox, alert: Alert, now_s: float) -> Outbox:
    """The outbox with one more alert."""
    return replace(
        box,
        waiting=join(box.waiting, alert),
        came_s={**box.came_s, _name(alert): now_s},
        since_s=now_s if box.empty else box.since_s,
    )


def due_s(box: Outbox, pace: Pace) -> float | None:
    """When the next message is to be sent, or None while there is nothing to say or one is being sent."""
    if not box.waiting or box.sending:
        return None
    urgent = any(alert.level is Level.PAGE for alert in box.waiting)
    free_s = box.since_s if box.sent_s is None or urgent else box.sent_s + pace.every_s
    return max(box.since_s + pace.group_s, free_s, box.retry_s)


def begin(box: Outbox) -> Outbox:
    """Everything that waits becomes the message that is being sent."""
    return replace(box, sending=box.waiting, waiting=())


def succeeded(box: Outbox, now_s: float) -> Outbox:
    """The message was delivered."""
    return replace(_left(box, box.waiting, now_s), sent_s=now_s, failures=0, retry_s=0.0)


def failed(box: Outbox, pace: Pace, now_s: float, retry_after_s: float | None) -> Outbox:
    """The message was not delivered: its alerts wait again, with what has come meanwhile.

    Args:
        box: The outbox.
        pace: How fast the channel may speak.
        now_s: The time.
        retry_after_s: What the other side asked for, or None.
    """
    waiting = box.sending
    for alert in box.waiting:
        waiting = join(waiting, alert)
    pause_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0**box.failures)
    asked_s = min(retry_after_s or 0.0, pace.give_up_s)  # by then everything that waits now is given up
    return replace(box, waiting=waiting, sending=(), failures=box.failures + 1, retry_s=now_s + max(pause_s, asked_s))


def hopeless(box: Outbox, pace: Pace, now_s: float) -> tuple[Alert, ...]:
    """What waits and has failed for too long; one that has come again meanwhile is news."""
    if not box.failures:
        return ()
    return tuple(alert for alert in box.waiting if now_s - box.came_s[_name(alert)] > pace.give_up_s)


def given_up(box: Outbox, alerts: Sequence[Alert], now_s: float) -> Outbox:
    """These alerts are waited for no more; with none left, the next one is tried without what was before."""
    left = _left(box, tuple(alert for alert in box.waiting if alert not in alerts), now_s)
    return left if left.waiting else replace(left, failures=0)


def refused(box: Outbox, now_s: float) -> Outbox:
    """The message that is being sent is refused for good."""
    return _left(box, box.waiting, now_s)


def _left(box: Outbox, waiting: tuple[Alert, ...], now_s: float) -> Outbox:
    """The outbox with only these alerts; nothing is being sent."""
    came_s = {_name(alert): box.came_s[_name(alert)] for alert in waiting}
    return replace(box, waiting=waiting, sending=(), came_s=came_s, since_s=min(came_s.values(), default=now_s))


def _name(alert: Alert) -> tuple[str, str]:
    return alert.run, alert.key
