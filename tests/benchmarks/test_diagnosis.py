"""The benchmark of the diagnosis, without any of its runs: figures, intervals and bars from what was said."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.diagnosis import F1_BAR, bootstrap, macro_f1, matrix, to_rows, wilson
from diagnosis_faults import FAULTS, make

from stormsail.platform.diagnosis import Cause, Diagnosis

KEYS = {"figure", "unit", "ours", "reference", "reference_name", "ratio", "bar", "aim", "pass", "interval"}
DATA, RATE, HARDWARE, UNKNOWN = Cause.DATA, Cause.OSCILLATION, Cause.HARDWARE, Cause.UNKNOWN


def told(name: str, expected: Cause, said: Cause, hint: Cause = UNKNOWN, *, confidence: float = 0.9) -> Any:
    return SimpleNamespace(
        case=SimpleNamespace(name=name, cause=expected, step=210, about=""),
        seed=0,
        said=Diagnosis(said, confidence),
        hint=Diagnosis(hint, 0.5),
        opened="detector",
        steps=30,
    )


class TestMacroF1:
    def test_all_right_is_one_and_all_wrong_is_nothing(self) -> None:
        assert macro_f1([(DATA, DATA), (RATE, RATE)]) == 1.0
        assert macro_f1([(DATA, RATE), (RATE, DATA)]) == 0.0

    def test_it_is_the_mean_over_causes_however_often_each_comes(self) -> None:
        # data: 2 of 3 named, nothing else called data: 0.8. rate: 1 of 1 named, one data called rate: 2/3.
        pairs = [(DATA, DATA), (DATA, DATA), (DATA, RATE), (RATE, RATE)]
        assert macro_f1(pairs) == pytest.approx((0.8 + 2.0 / 3.0) / 2.0)

    def test_unknown_is_missed_but_no_false_alarm(self) -> None:
        honest, wrong = [(DATA, UNKNOWN), (RATE, RATE)], [(DATA, RATE), (RATE, RATE)]
        assert macro_f1(honest) == 0.5
        assert macro_f1(wrong) < macro_f1(honest)


class TestIntervals:
    def test_the_bootstrap_holds_the_figure_and_is_the_same_each_time(self) -> None:
        draw = Random(3)
        pairs = [
            (cause, cause if draw.random() < 0.8 else UNKNOWN) for cause in (DATA, RATE, HARDWARE) for _ in range(20)
        ]
        low, high = bootstrap(pairs, macro_f1, rounds=200)
        assert 0.0 < low < macro_f1(pairs) < high < 1.0
        assert (low, high) == bootstrap(pairs, macro_f1, rounds=200)

    def test_without_a_mistake_there_is_nothing_to_scatter(self) -> None:
        assert bootstrap([(DATA, DATA)] * 5, macro_f1, rounds=50) == (1.0, 1.0)

    def test_wilson_is_wide_for_few_and_narrow_for_many(self) -> None:
        few, many = wilson(8, 10), wilson(800, 1000)
        assert few == pytest.approx((0.490, 0.943), abs=0.001)  # as in the textbooks
        assert few[0] < many[0] < 0.8 < many[1] < few[1]


def test_the_matrix_has_a_row_for_each_fault_and_a_column_for_what_was_said() -> None:
    found = [told("noise", DATA, DATA), told("noise", DATA, UNKNOWN), told("rate", RATE, RATE)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in matrix(found).splitlines()]
    assert lines[0] == ["fault", "expected", str(DATA), str(RATE), str(UNKNOWN)]
    assert lines[2] == ["noise", str(DATA), "1", "", "1"]
    assert lines[3] == ["rate", str(RATE), "", "1", ""]


class TestBars:
    def test_each_row_has_the_agreed_keys(self) -> None:
        rows = to_rows([told("noise", DATA, DATA), told("rate", RATE, RATE)])
        assert all(row.keys() == KEYS for row in rows)

    def test_good_figures_pass(self) -> None:
        found = [told("noise", DATA, DATA)] * 10 + [told("rate", RATE, RATE)] * 10
        assert {row["pass"] for row in to_rows(found)} <= {True, None}

    def test_a_macro_f1_below_the_bar_is_said(self) -> None:
        found = [told("noise", DATA, DATA)] * 2 + [told("rate", RATE, UNKNOWN)] * 2
        first = to_rows(found)[0]
        assert (first["ours"], first["bar"], first["pass"]) == (0.5, F1_BAR, False)
        assert first["reference"] == 0.0

    @pytest.mark.parametrize(
        ("cases", "wrong", "passed"), [(24, 1, True), (24, 2, False), (120, 1, True), (120, 2, False)]
    )
    def test_one_wrong_hardware_is_allowed_and_a_second_one_is_not(self, cases: int, wrong: int, passed: bool) -> None:
        right = [told("bit", HARDWARE, HARDWARE)] * (cases - wrong)  # these are not wrong
        row = to_rows([*right, *[told("noise", DATA, HARDWARE)] * wrong])[1]
        assert (row["ours"], row["pass"]) == (wrong, passed)

    def test_a_replay_beyond_its_budget_is_said(self) -> None:
        long = told("noise", DATA, DATA)
        long.steps = 51
        assert [row["pass"] for row in to_rows([long]) if row["unit"] == "most"] == [False]

    def test_verdicts_that_are_not_confident_are_counted_apart(self) -> None:
        found = [told("noise", DATA, DATA), told("noise", DATA, RATE, confidence=0.3)]
        shares = {row["figure"]: row["ours"] for row in to_rows(found)}
        assert (shares["confident verdicts"], shares["confident verdicts that are right"]) == (0.5, 1.0)


def test_the_twelve_faults_are_random_by_seed_and_begin_within_30_steps() -> None:
    assert len(FAULTS) == 12
    for name in FAULTS:
        drawn = [make(name, seed, 1000, 200) for seed in range(10)]
        again = [make(name, seed, 1000, 200) for seed in range(10)]
        assert [(case.step, case.about) for case in drawn] == [(case.step, case.about) for case in again]
        assert all(200 <= case.step <= 230 for case in drawn)
        assert len({(case.step, case.about) for case in drawn}) > 1
