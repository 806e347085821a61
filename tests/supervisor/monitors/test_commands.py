"""`stormsail monitors`."""

from __future__ import annotations

import json

import pytest

from stormsail.platform.cli import run
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.monitors.table import ITEMS


def test_without_a_run_it_lists_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitors", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["items"]) == len(ITEMS)
    assert {"name", "unit", "source", "normal", "warn", "danger", "action", "runbook"} <= found["items"][0].keys()
    assert run(["monitors", "--preset", "article"]) == 0
    assert "normal 2 to 4" in capsys.readouterr().out


@pytest.mark.usefixtures("past")
def test_with_a_run_it_says_how_it_stands(root: StoreAddress, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitors", "run", "--storage", root.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    levels = {item["name"]: item["level"] for item in found["items"]}
    assert levels["loss.value"] == "normal"
    assert levels["recovery.numeric"] == "warn"
    assert run(["monitors", "run", "--storage", root.url]) == 0
    assert "recovery.numeric" in capsys.readouterr().out


def test_a_preset_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitors", "--preset", "folklore"]) == 2
    assert "default, article" in capsys.readouterr().err
