"""What is printed, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.session import Request
from stormsail.supervisor.backtest.showing import show, show_rules


@pytest.fixture
def nan(tmp_path: Path) -> Request:
    path = tmp_path / "nan.csv"
    path.write_text("step,loss\n" + "".join(f"{step},{'nan' if step > 5 else 3.0}\n" for step in range(20)))
    return Request((str(path),))


def test_json_is_one_object_with_a_version(nan: Request, capsys: pytest.CaptureFixture[str]) -> None:
    show(nan, plot=None, as_json=True)
    made = json.loads(capsys.readouterr().out)
    assert made.keys() == {"version", "files"}
    assert made["files"][0]["alarms"][-1]["step"] == 8


def test_text_names_the_incident_and_what_to_do_next(nan: Request, capsys: pytest.CaptureFixture[str]) -> None:
    show(nan, plot=None, as_json=False)
    out = capsys.readouterr().out
    assert "INCIDENT  step 8" in out
    assert "--plot" in out


def test_a_picture_is_drawn_where_asked(nan: Request, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(nan, plot=tmp_path / "x.png", as_json=False)
    assert (tmp_path / "x.png").stat().st_size > 1000
    assert "picture: " in capsys.readouterr().out


def test_a_picture_that_cannot_be_drawn_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot draw"):
        show(Request((str(tmp_path / "gone.csv"),)), plot=tmp_path / "x.doc", as_json=False)


@pytest.mark.parametrize("as_json", [True, False])
def test_all_rules_are_listed(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    show_rules(as_json=as_json)
    out = capsys.readouterr().out
    assert "olmo-skipstep" in out
    if as_json:
        assert json.loads(out)["presets"]["default"]
