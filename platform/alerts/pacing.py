"""When the next message goes out: grouping, rate limit, and retries with growing pauses; pure.

One outbox per channel. Time comes as an argument, in seconds of any steady clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stormsail.platform.alerts.alert import Alert, Level, join

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a channel may speak.

    Attributes:
        group_s: An alert waits this long for others that belong to the same message.
        every_s: Least time between two messages; only what needs a person at once does not wait for it.
        give_up_s: A message that could not be delivered for this long is given up.
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
        since_s: When the oldest of both came.
        sent_s: When the last message went out, or None.
        failures: Tries that failed in a row.
        retry_s: No try before this.
    """

    waiting: tuple[Alert, ...] = ()
    sending: tuple[Alert, ...] = ()
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
    return replace(box, waiting=join(box.waiting, alert), since_s=now_s if box.empty else box.since_s)


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
    return replace(box, sending=(), since_s=now_s, sent_s=now_s, failures=0, retry_s=0.0)


def failed(box: Outbox, now_s: float, retry_after_s: float | None) -> Outbox:
    """The message was not delivered: its alerts wait again, with what has come meanwhile.

    Args:
        box: The outbox.
        now_s: The time.
        retry_after_s: What the other side asked for, or None.
    """
    waiting = box.sending
    for alert in box.waiting:
        waiting = join(waiting, alert)
    pause_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0**box.failures)
    asked_s = min(retry_after_s or 0.0, _LONGEST_RETRY_S)
    return replace(box, waiting=waiting, sending=(), failures=box.failures + 1, retry_s=now_s + max(pause_s, asked_s))


def hopeless(box: Outbox, pace: Pace, now_s: float) -> bool:
    """Whether what waits has failed for too long."""
    return box.failures > 0 and now_s - box.since_s > pace.give_up_s


def dropped(box: Outbox, now_s: float) -> Outbox:
    """The message that is being sent, or has failed, is given up."""
    if box.sending:
        return replace(box, sending=(), since_s=now_s)
    return replace(box, waiting=(), since_s=now_s, failures=0, retry_s=0.0)
