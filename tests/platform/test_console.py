"""Output helpers: JSON that every reader takes, colour only where it is seen."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from stormsail.platform.console import colour_wanted, emit_json, styled


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Pair:
    left: float
    right: tuple[int, ...]


class Word(StrEnum):
    YES = "yes"


def written(**values: object) -> dict[str, object]:
    out = io.StringIO()
    emit_json(values, stream=out)
    assert out.getvalue().endswith("}\n")
    assert out.getvalue().count("\n") == 1
    return dict(json.loads(out.getvalue()))


def test_json_carries_its_version() -> None:
    assert written(a=1) == {"version": 1, "a": 1}


def test_numbers_that_json_lacks_become_null_at_any_depth() -> None:
    assert written(a=float("nan"), b=[float("inf")], c=Pair(float("-inf"), (1,)))["c"] == {"left": None, "right": [1]}


def test_values_of_python_find_their_json() -> None:
    assert written(a=Path("x/y"), b=Word.YES, c={1: {2, 1}}, d=None, e=True, f="ä") == {
        "version": 1,
        "a": "x/y",
        "b": "yes",
        "c": {"1": [1, 2]},
        "d": None,
        "e": True,
        "f": "ä",
    }


def test_what_has_no_json_form_is_an_error() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        written(a=object())


def test_without_a_stream_it_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": 1})
    assert json.loads(capsys.readouterr().out) == {"version": 1, "a": 1}


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert styled("x", "red", stream=Terminal()) == "\033[31mx\033[0m"
    assert styled("x", "red", stream=io.StringIO()) == "x"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colour_wanted(Terminal())
    monkeypatch.setenv(name, value)
    assert not colour_wanted(Terminal())
