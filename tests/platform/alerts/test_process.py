"""The process that sends: grouped, retried, told, and never in anybody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ears import Webhook, an_alert, webhook
from tests.support.run_kit import within

from stormsail.platform.alerts.delivery import DeliveryError
from stormsail.platform.alerts.pacing import Pace
from stormsail.platform.alerts.process import Sender, SenderSettings, senders_for, serve
from stormsail.platform.config.alerts import AlertsSection

FAST = Pace(group_s=0.01, every_s=0.01, give_up_s=60.0)


class Line:
    """A channel that does as it is told."""

    name = "line"

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.errors: list[DeliveryError] = []
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    def send(self, subject: str, _body: str) -> None:
        self.gate.wait(20.0)
        if self.broken:
            raise KeyError("s3cr3t")
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(subject)


class Ledger:
    """What was said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, **data: Any) -> None:
        self.said.append((kind, data))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def said() -> Ledger:
    return Ledger()


def sender(line: Line, said: Ledger, pace: Pace = FAST) -> Sender:
    return Sender(line, pace, said, hide=lambda text: text.replace("s3cr3t", "***"))


def test_what_was_sent_is_told_with_the_events_that_it_is_about(line: Line, said: Ledger) -> None:
    made = sender(line, said, Pace(group_s=60.0, every_s=0.01, give_up_s=60.0))  # `end` sends what waits
    made.add(an_alert(3))
    made.add(an_alert(5))
    made.end()
    assert made.wait(10.0)
    assert said.kinds == ["alert.sent"]
    assert said.said[0][1]["about"] == [3, 5]
    assert said.said[0][1]["channel"] == "line"


def test_two_hundred_anomalies_in_a_burst_are_two_messages_at_most(line: Line, said: Ledger) -> None:
    """Case 58."""
    made = sender(line, said, Pace(group_s=0.05, every_s=60.0, give_up_s=60.0))
    for number in range(200):
        made.add(an_alert(number))
    assert within(lambda: len(line.sent) == 1)
    made.end()
    assert made.wait(10.0)
    assert len(line.sent) <= 2
    assert sorted(n for _, data in said.said for n in data["about"]) == list(range(200))


def test_a_passing_failure_is_told_once_and_tried_again(line: Line, said: Ledger) -> None:
    line.errors = [DeliveryError("s3cr3t is busy", retry_after_s=0.01)]
    made = sender(line, said)
    made.add(an_alert())
    assert within(lambda: bool(line.sent))
    made.end()
    assert made.wait(10.0)
    assert said.kinds == ["alert.delayed", "alert.sent"]
    assert said.said[0][1]["why"] == "*** is busy"


def test_a_refusal_for_good_is_told_and_the_next_message_is_tried_all_the_same(line: Line, said: Ledger) -> None:
    line.errors = [DeliveryError("no such hook", permanent=True)]
    made = sender(line, said)
    made.add(an_alert(1))
    assert within(lambda: said.kinds == ["alert.failed"])
    made.add(an_alert(2))
    made.end()
    assert made.wait(10.0)
    assert said.kinds == ["alert.failed", "alert.sent"]


def test_what_fails_for_too_long_is_given_up_and_told(line: Line, said: Ledger) -> None:
    line.errors = [DeliveryError("busy")] * 5
    made = sender(line, said, Pace(group_s=0.01, every_s=0.01, give_up_s=1e-6))
    made.add(an_alert(4))
    assert within(lambda: said.kinds == ["alert.failed"])
    made.end()
    assert made.wait(10.0)


def test_one_that_hangs_holds_nobody_up_and_is_told_at_the_end(line: Line, said: Ledger) -> None:
    line.gate.clear()
    made = sender(line, said)
    for number in range(100):
        made.add(an_alert(number))
    made.end()
    assert not made.wait(0.1)
    assert set(said.kinds) == {"alert.failed"}
    assert sum(data["alerts"] for _, data in said.said) == 100
    line.gate.set()


def test_a_message_that_breaks_its_channel_is_told_without_the_secret_and_the_next_is_sent(
    line: Line, said: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    line.broken = True
    made = sender(line, said)
    made.add(an_alert(1))
    assert within(lambda: said.kinds == ["alert.failed"])
    line.broken = False
    assert said.said[0][1]["why"] == "KeyError: '***'"
    made.add(an_alert(2))
    made.end()
    assert made.wait(10.0)
    assert said.kinds == ["alert.failed", "alert.sent"]
    shown = capsys.readouterr().err
    assert "KeyError" in shown
    assert "s3cr3t" not in shown


def test_a_channel_without_its_secret_is_told_and_the_others_work(said: Ledger) -> None:
    mail = {"host": "localhost", "sender": "a@x", "to": ["b@x"]}
    section = AlertsSection.model_validate({"slack": "env:HOOK", "email": mail})
    made = senders_for(section, {}, said)
    assert set(made) == {"email"}
    assert said.kinds == ["alert.unusable"]
    assert serve(made, [])


def test_an_address_that_is_none_is_told_and_the_others_work(said: Ledger) -> None:
    mail = {"host": "localhost", "sender": "a@x", "to": ["b@x"]}
    section = AlertsSection.model_validate({"slack": "env:HOOK", "email": mail})
    assert set(senders_for(section, {"HOOK": "http://[abc"}, said)) == {"email"}
    assert said.kinds == ["alert.unusable"]


def test_settings_survive_the_line_that_they_travel_on() -> None:
    settings = SenderSettings({"slack": "env:HOOK"}, "/run/alerts.json")
    assert SenderSettings.from_line(settings.to_line()) == settings


@pytest.fixture
def ear() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.mark.slow
def test_the_real_process_delivers_tells_and_ends(ear: Webhook, tmp_path: Path) -> None:
    ear.answers = [(429, {"Retry-After": "0"})]
    section = AlertsSection.model_validate({"slack": "env:HOOK", "group_s": 0.01, "timeout_s": 5.0})
    lines = [
        SenderSettings(section.model_dump(mode="json"), str(tmp_path / "none")).to_line(),
        *(json.dumps({"alert": an_alert(n).to_json(), "channels": ["slack"]}) for n in (1, 2)),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "stormsail.platform.alerts.process"],
        input="".join(line + "\n" for line in lines),
        env={**os.environ, "HOOK": ear.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item["kind"] for item in said][-1] == "alert.sent"
    assert sorted({n for item in said for n in item.get("about", [])}) == [1, 2]
    assert "loss spike" in ear.heard[-1]
    assert "s3cr3t" not in done.stdout
