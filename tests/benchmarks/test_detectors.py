"""The benchmark of the detectors, on very little."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.detectors import Amount, judge, labelled, measure, state_mb, table, to_rows, trouble_runs

from stormsail.workers.detect.rules.registry import OURS, RULES

KEYS = {"figure", "unit", "ours", "reference", "reference_name", "ratio", "bar", "aim", "pass"}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float | None]]:
    return measure(Amount(1, 400, 0, 100), [])


def test_each_row_has_the_agreed_keys_and_each_named_rule_is_compared(
    found: dict[str, dict[str, float | None]],
) -> None:
    rows = to_rows(found)
    assert all(row.keys() == KEYS for row in rows)
    named = {row["reference_name"] for row in rows} - {""}
    assert named == RULES.keys() - {rule.name for rule in OURS}


def test_the_table_has_a_line_for_each_rule(found: dict[str, dict[str, float | None]]) -> None:
    lines = table(found).splitlines()
    assert lines[2].startswith("| default")
    assert sum("article-" in line for line in lines) == 5


def test_a_bar_that_is_missed_is_said() -> None:
    rows = to_rows({"default": {"recall: spike": 0.5, "memory": 20.0}, "other": {"recall: spike": 0.25}})
    assert [(row["ratio"], row["pass"]) for row in rows] == [(2.0, False), (None, False)]


@pytest.mark.parametrize(
    ("figure", "met", "missed"),
    [
        ("false: healthy", 0.1, 0.2),  # one in 100,000 steps; two
        ("false: healthy, coarse", 0.1, 0.2),
        ("false: labelled", 0.0, 0.1),
        ("recall: labelled", 1.0, 0.9),
        ("recall: spike", 0.9, 0.8),
        ("recall: slow divergence, coarse", 0.9, 0.5),
    ],
)
def test_each_figure_has_the_bar_that_must_hold(figure: str, met: float, missed: float) -> None:
    for value, holds in ((met, True), (missed, False)):
        found: dict[str, dict[str, float | None]] = {
            "default": {figure: value, "memory": 1.0},
            "other": {figure: 0.0},
        }
        assert [row["pass"] for row in to_rows(found) if row["figure"] == figure] == [holds]
        assert ("missed by the default: " in table(found)) is not holds


def test_a_latency_has_no_bar() -> None:
    rows = to_rows({"default": {"latency: spike": 99.0}, "other": {"latency: spike": 1.0}})
    assert [(row["bar"], row["aim"], row["pass"]) for row in rows] == [(None, None, None)]


def test_a_spike_of_its_own_making_is_found() -> None:
    score, spoke = judge(OURS, trouble_runs("spike", Amount(0, 0, 1, 0)))
    assert (score.events, score.found, spoke) == (1, 1, 1)


def test_labelled_curves_are_placed_by_what_is_known_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n" + "".join(f"{step},3\n" for step in range(100)))
    (tmp_path / "b.csv").write_text("step,loss\n" + "".join(f"{step},3\n" for step in range(100, 200)))
    (tmp_path / "frag.csv").write_text("step,loss\n900,3\n901,4\n")
    (tmp_path / "other.csv").write_text("step,loss\n1,3\n")
    lines = "".join(f"{name},1,2,none\n" for name in ("a", "b", "frag"))
    (tmp_path / "labels.csv").write_text(f"series,start,end,action_expected\n{lines}")
    first, second, fragment = labelled(tmp_path, tmp_path / "labels.csv")
    assert (first.past, first.restarted) == ((), None)
    assert (len(second.past), second.restarted) == (100, True)
    assert (len(fragment.past), fragment.restarted) == (300, None)


def test_the_states_are_small() -> None:
    assert state_mb(2000) < 0.5
