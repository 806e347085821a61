"""What a person says happened."""

from __future__ import annotations

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.labels import Label, parse_labels

HEAD = "series,start,end,kind,action_expected,note\n"


def test_labels_are_read_by_column_name() -> None:
    text = HEAD + 'run,10,20,loss_spike,rollback,"a, b"\nrun,5,,outlier,none,\n'
    assert parse_labels(text, "x") == (
        Label("run", 10, 20, "loss_spike", "rollback"),
        Label("run", 5, 5, "outlier", "none"),
    )


@pytest.mark.parametrize(
    ("action", "event"),
    [("rollback", True), ("fix_resume", True), ("stop_now", True), ("none", False), ("watch", False)],
)
def test_some_actions_need_an_incident(action: str, event: bool) -> None:
    assert Label("run", 1, 2, "", action).is_event is event


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ConfigError, match="no column end, action_expected"):
        parse_labels("series,start\n", "x")


@pytest.mark.parametrize("line", ["run,a,2,k,none,", "run,9,2,k,none,", ",1,2,k,none,"])
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match="x, line 2"):
        parse_labels(HEAD + line + "\n", "x")


def test_a_field_that_is_too_long_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no CSV"):
        parse_labels(HEAD + "x" * 140_000, "x")
