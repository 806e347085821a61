"""From the journal to a real webhook and back: what was sent is in the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.ears import Webhook, webhook
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import data_of, kinds, within

from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import FencedError
from stormsail.platform.journal import Journal
from stormsail.supervisor.alerting import desk as desks
from stormsail.supervisor.alerting.desk import VARIABLES, AlertDesk
from stormsail.supervisor.ledger import Ledger

pytestmark = pytest.mark.slow


@pytest.fixture
def ear() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture
def store() -> FragileStore:
    return FragileStore()


@pytest.fixture
def ledger(store: FragileStore, tmp_path: Path) -> Ledger:
    return Ledger(store, tmp_path / "journal", writer="w", deadline_s=5.0)


@pytest.fixture
def folder(tmp_path: Path, ear: Webhook) -> Path:
    (tmp_path / VARIABLES).write_text(json.dumps({"HOOK": ear.url}), encoding="utf-8")
    return tmp_path


def desk(ledger: Ledger, folder: Path, **changes: Any) -> AlertDesk:
    section = AlertsSection.model_validate({"slack": "env:HOOK", "group_s": 0.01, "every_s": 0.01, **changes})
    return AlertDesk(section, ledger, folder, run="quick")


def test_an_event_becomes_a_message_and_the_journal_knows(
    ledger: Ledger, folder: Path, store: FragileStore, ear: Webhook
) -> None:
    made = desk(ledger, folder)
    ledger.note("checkpoint.alert", step=9, missed=3, why="no space")
    assert within(lambda: bool(ear.heard))
    ledger.note("run.failed", step=10, error="no space left", exit_code=75)
    made.close()
    assert "3 checkpoints in a row were not saved" in ear.heard[0]
    assert "no space left" in ear.heard[-1]
    ledger.flush(5.0)
    events = Journal.read(store)
    sent: list[dict[str, Any]] = [event.data for event in events if event.kind == "alert.sent"]
    told = {number for data in sent for number in data["about"]}
    assert told == {event.number for event in events if event.kind in ("checkpoint.alert", "run.failed")}
    assert not (folder / VARIABLES).exists()
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"s3cr3t" in path.read_bytes()]


def test_what_is_below_the_level_is_not_sent(ledger: Ledger, folder: Path, ear: Webhook) -> None:
    made = desk(ledger, folder, level="page")
    ledger.note("checkpoint.alert", step=9, missed=3, why="no space")
    made.close()
    assert ear.heard == []


def test_a_new_supervisor_sends_what_the_old_one_owed(ledger: Ledger, folder: Path, ear: Webhook) -> None:
    ledger.note("checkpoint.alert", step=9, missed=3, why="no space")
    desk(ledger, folder).close()
    assert len(ear.heard) == 1
    (folder / VARIABLES).write_text(json.dumps({"HOOK": ear.url}), encoding="utf-8")
    desk(ledger, folder).close()
    assert len(ear.heard) == 1


def test_a_channel_that_cannot_be_used_is_said(ledger: Ledger, folder: Path, store: FragileStore) -> None:
    desk(ledger, folder, slack="env:NO_SUCH_VARIABLE").close()
    ledger.flush(5.0)
    assert "NO_SUCH_VARIABLE is not set" in data_of(Journal.read(store), "alert.unusable")["why"]


@pytest.mark.parametrize("in_time", [True, False])
def test_another_process_takes_the_place_of_one_that_died_and_sends_what_that_one_owed(
    ledger: Ledger, folder: Path, store: FragileStore, ear: Webhook, in_time: bool
) -> None:
    made = desk(ledger, folder)
    made._process.kill()
    made._process.wait(10.0)
    ledger.note("checkpoint.alert", step=9, missed=3, why="no space")
    assert not in_time or within(lambda: bool(ear.heard))
    made.close()
    ledger.flush(5.0)
    events = Journal.read(store)
    assert "ended with -9; another one takes its place" in data_of(events, "alert.unusable")["why"]
    assert len(ear.heard) == 1
    assert kinds(events).count("alert.sent") == 1


def test_one_that_dies_again_and_again_is_left_and_harms_nobody(
    ledger: Ledger, folder: Path, store: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "_MOST_STARTS", 1)
    made = desk(ledger, folder)
    made._process.kill()
    made._process.wait(10.0)
    made.close()
    ledger.flush(5.0)
    assert data_of(Journal.read(store), "alert.unusable")["why"].endswith("ended with -9 and stays away after 1 starts")
    assert kinds(Journal.read(store)).count("alert.unusable") == 1


def test_a_line_that_breaks_off_is_no_reason_not_to_listen_any_more(
    ledger: Ledger, folder: Path, store: FragileStore, capfd: pytest.CaptureFixture[str]
) -> None:
    made = desk(ledger, folder)
    said: Any = SimpleNamespace(
        stdout=['{"kind": "alert.se\n', '{"kind": "alert.sent", "channel": "x", "about": []}\n']
    )
    made._listen(said)
    made.close()
    ledger.flush(5.0)
    assert kinds(Journal.read(store)) == ["alert.sent"]
    assert "alert.se" in capfd.readouterr().err


def test_one_that_never_answers_is_left_in_the_end(
    ledger: Ledger, folder: Path, store: FragileStore, ear: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "LAST_WORDS_S", -59.9)
    ear.silent = True
    made = desk(ledger, folder, timeout_s=60.0)
    ledger.note("checkpoint.alert", step=9, missed=3, why="no space")
    assert within(lambda: bool(ear.heard))
    made.close()
    ledger.flush(5.0)
    assert "alert.sent" not in kinds(Journal.read(store))


def test_a_supervisor_that_was_fenced_off_notes_nothing(ledger: Ledger, folder: Path) -> None:
    made = desk(ledger, folder)
    ledger.note = _fenced  # type: ignore[method-assign]  # another supervisor writes this journal
    made._note("alert.sent", channel="slack", about=[])
    made.close()


def _fenced(*_args: Any, **_named: Any) -> Any:
    raise FencedError("another supervisor has the run")
