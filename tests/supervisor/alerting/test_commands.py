"""`stormsail alerts test`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.ears import Webhook, webhook

from stormsail.platform.cli import run

CONFIG = """
name: quick
train: {steps: 100}
alerts: {slack: 'env:HOOK'}
"""


@pytest.fixture
def ear() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_one_message_goes_through_every_channel(
    file: Path, ear: Webhook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOK", ear.url)
    assert run(["alerts", "test", str(file)]) == 0
    assert "this is a test" in ear.heard[0]
    assert capsys.readouterr().out == "slack: sent\n"


def test_one_that_does_not_get_through_is_exit_3_without_its_secret(
    file: Path, ear: Webhook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ear.answers = [(404, {})]
    monkeypatch.setenv("HOOK", ear.url)
    assert run(["alerts", "test", str(file), "--json"]) == 3
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[0])
    assert "404" in found["channels"]["slack"]["why"]
    assert "s3cr3t" not in said.out + said.err


def test_a_variable_that_is_not_set_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    assert run(["alerts", "test", str(file)]) == 3
    assert "HOOK is not set" in capsys.readouterr().out


def test_without_a_channel_it_says_how_to_get_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(CONFIG.replace("alerts: {slack: 'env:HOOK'}", ""), encoding="utf-8")
    assert run(["alerts", "test", str(file)]) == 2
    assert "alerts.slack" in capsys.readouterr().err


def test_a_secret_in_the_file_is_refused_and_not_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(CONFIG.replace("env:HOOK", "https://hooks.slack.com/services/T0/B0/s3cr3t"), encoding="utf-8")
    assert run(["alerts", "test", str(file)]) == 2
    said = capsys.readouterr().err
    assert "env:NAME" in said
    assert "s3cr3t" not in said
