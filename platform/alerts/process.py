"""The process that sends alerts: fed one line per alert, and whatever becomes of its channels, nobody waits for it.

Run as `python -m stormsail.platform.alerts.process`, settings as JSON on the first line of stdin, then one alert a
line. What was sent when, and what was not and why, it says as JSON lines on stdout. When stdin ends it sends what is
left, within a limit, and ends. Each channel has a thread of its own, so that one that hangs holds up no other.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stormsail.platform.alerts import pacing
from stormsail.platform.alerts.alert import Alert, body, subject
from stormsail.platform.alerts.channels import make_channel, secret_of
from stormsail.platform.alerts.delivery import Channel, DeliveryError
from stormsail.platform.alerts.pacing import Outbox, Pace
from stormsail.platform.alerts.references import kept_variables, scrub
from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import ConfigError

LAST_WORDS_S = 30.0
_BUSY_S = 60.0

Say = Callable[..., None]


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """What the process is started with.

    Attributes:
        alerts: The configuration's section, as plain JSON values.
        variables: File with the values of variables that secrets refer to; it may be missing.
    """

    alerts: dict[str, Any]
    variables: str

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> SenderSettings:
        """The opposite of `to_line`."""
        return cls(**json.loads(line))


class Sender:
    """One channel's outbox and the thread that empties it.

    Args:
        channel: Where to.
        pace: How fast.
        say: Told of what was sent, delayed or given up.
        hide: Takes secrets out of a text.
    """

    def __init__(self, channel: Channel, pace: Pace, say: Say, *, hide: Callable[[str], str]) -> None:
        self._channel = channel
        self._pace = pace
        self._say = say
        self._hide = hide
        self._box = Outbox()
        self._delayed = False
        self._ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"stormsail-{channel.name}", daemon=True)
        self._thread.start()

    def add(self, alert: Alert) -> None:
        """Take one more alert; never waits for the channel."""
        with self._changed:
            self._box = pacing.add(self._box, alert, time.monotonic())
            self._changed.notify_all()

    def end(self) -> None:
        """From now on nothing waits for its turn, and nothing new comes."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything was sent; whatever was not is told as failed. Returns whether all was sent."""
        self._thread.join(max(0.0, timeout_s))
        with self._changed:
            for alerts in (self._box.sending, self._box.waiting):
                if alerts:
                    self._tell_failed(alerts, "the run ended before it could be sent")
            return self._box.empty

    def _run(self) -> None:
        try:
            while self._next():
                self._send()
        except Exception as error:  # noqa: BLE001 - the thread's entry: a channel that broke must say so
            traceback.print_exception(error)
            self._say("alert.unusable", channel=self._channel.name, why=self._hide(f"{type(error).__name__}: {error}"))

    def _next(self) -> bool:
        """Wait for the next message's time and begin it. False: there is nothing more to send."""
        with self._changed:
            while True:
                if self._ending and self._box.empty:
                    return False
                due_s = pacing.due_s(self._box, self._pace)
                left_s = _BUSY_S if due_s is None else due_s - time.monotonic()
                hurry = self._ending and self._box.failures == 0
                if due_s is not None and (left_s <= 0 or hurry):
                    self._box = pacing.begin(self._box)
                    return True
                self._changed.wait(left_s)

    def _send(self) -> None:
        alerts = self._box.sending
        try:
            self._channel.send(subject(alerts), body(alerts))
        except DeliveryError as error:
            self._not_sent(alerts, error)
            return
        except Exception as error:  # noqa: BLE001 - a message that cannot be sent must not end its channel
            sys.stderr.write(self._hide(traceback.format_exc()))
            self._not_sent(alerts, DeliveryError(f"{type(error).__name__}: {error}", permanent=True))
            return
        with self._changed:
            self._box = pacing.succeeded(self._box, time.monotonic())
            self._delayed = False
        self._say("alert.sent", channel=self._channel.name, **_told(alerts))

    def _not_sent(self, alerts: tuple[Alert, ...], error: DeliveryError) -> None:
        why, now = self._hide(error.what), time.monotonic()
        with self._changed:
            if error.permanent:
                self._box = pacing.refused(self._box, now)
                self._tell_failed(alerts, why)
                return
            self._box = pacing.failed(self._box, self._pace, now, error.retry_after_s)
            if hopeless := pacing.hopeless(self._box, self._pace, now):
                self._box = pacing.given_up(self._box, hopeless, now)
                self._tell_failed(hopeless, why)
            if self._box.empty:
                return
            first, self._delayed = not self._delayed, True
        if first:
            self._say("alert.delayed", channel=self._channel.name, why=why)

    def _tell_failed(self, alerts: tuple[Alert, ...], why: str) -> None:
        self._say("alert.failed", channel=self._channel.name, why=why, **_told(alerts))


def _told(alerts: tuple[Alert, ...]) -> dict[str, Any]:
    return {
        "about": sorted({number for alert in alerts for number in alert.about}),
        "subject": subject(alerts),
        "alerts": sum(alert.count for alert in alerts),
    }


def senders_for(section: AlertsSection, variables: Mapping[str, str], say: Say) -> dict[str, Sender]:
    """A sender for each channel that can be used; of the others it is said why not."""
    pace = Pace(section.group_s, section.every_s, section.give_up_s)
    found: dict[str, Sender] = {}
    for name in section.channels:
        try:
            secret = secret_of(section, name, variables)
            channel = make_channel(section, name, secret)
        except (ConfigError, DeliveryError) as error:
            say("alert.unusable", channel=name, why=" ".join(str(error).split()))
            continue
        hidden = (secret,) if secret is not None else ()
        found[name] = Sender(channel, pace, say, hide=partial(scrub, secrets=hidden))
    return found


def serve(senders: Mapping[str, Sender], lines: Any) -> bool:
    """Hand every line's alert to its channels; when the lines end, send what is left. Returns whether all was sent."""
    for line in lines:
        told = json.loads(line)
        alert = Alert.from_json(told["alert"])
        for name in told["channels"]:
            if name in senders:
                senders[name].add(alert)
    deadline = time.monotonic() + LAST_WORDS_S
    for sender in senders.values():
        sender.end()
    sent = [sender.wait(deadline - time.monotonic()) for sender in senders.values()]
    return all(sent)


def main() -> int:
    """Send until stdin ends; 0 if everything was sent."""
    os.nice(10)  # training comes first
    settings = SenderSettings.from_line(sys.stdin.readline())
    section = AlertsSection.model_validate(settings.alerts, strict=False)
    variables = kept_variables(Path(settings.variables), os.environ)
    lock, wire = threading.Lock(), sys.stdout
    sys.stdout = sys.stderr  # what a library prints is for the log

    def say(kind: str, **data: object) -> None:
        with lock:
            wire.write(json.dumps({"kind": kind, **data}) + "\n")
            wire.flush()

    return 0 if serve(senders_for(section, variables, say), sys.stdin) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a channel's thread may hang in a call that never returns
