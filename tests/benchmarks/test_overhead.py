"""The benchmark of what watching costs, without its run."""

from __future__ import annotations

import pytest
from benchmarks.overhead import interval, table, to_rows

KEYS = {"figure", "unit", "ours", "reference", "reference_name", "ratio", "bar", "aim", "pass"}


def found(inside_s: float) -> dict[str, object]:
    return {
        "on": [[0.2, 0.21, 0.19]] * 20,
        "off": [[0.198, 0.2, 0.19]] * 20,
        "inside": [inside_s] * 300,
        "share": 0.006,
        "every": 10.0,
    }


def test_rows_have_the_agreed_keys_and_the_first_one_the_bar() -> None:
    rows = to_rows(found(0.001))
    assert all(row.keys() == KEYS for row in rows)
    assert (rows[0]["ours"], rows[0]["bar"], rows[0]["aim"], rows[0]["pass"]) == (pytest.approx(0.5), 2.0, 0.5, True)
    assert [row["pass"] for row in rows[1:]] == [None] * (len(rows) - 1)
    assert "| yes" in table(rows)


def test_a_bar_that_is_missed_is_said() -> None:
    assert to_rows(found(0.005))[0]["pass"] is False


def test_the_interval_holds_the_difference_of_pairs() -> None:
    on = [[0.2 + 0.001 * (turn % 5)] for turn in range(40)]
    off = [[0.198 + 0.001 * (turn % 5)] for turn in range(40)]
    middle, low, high = interval(on, off)
    assert low <= middle <= high
    assert middle == pytest.approx(1.0, abs=0.05)
