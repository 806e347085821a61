"""Curves as rules take them."""

from __future__ import annotations

from stormsail.supervisor.backtest.curve import Curve, Point, in_order, merge_repeats, rows_of, run_starts


def points(*steps: int) -> list[Point]:
    return [Point(step, 3.0) for step in steps]


def test_the_distance_of_rows_is_known_from_the_first() -> None:
    assert [row.stride for row in rows_of(points(0, 50, 100, 150))] == [50, 50, 50, 50]


def test_a_single_gap_does_not_change_the_distance() -> None:
    assert {row.stride for row in rows_of(points(1, 2, 3, 4, 400, 401, 402))} == {1}


def test_a_log_that_becomes_sparse_is_followed() -> None:
    rows = list(rows_of(points(*range(20), *range(100, 3000, 100))))
    assert rows[5].stride == 1
    assert rows[-1].stride == 100


def test_a_step_that_goes_back_is_a_restart() -> None:
    assert [row.restart for row in rows_of(points(8, 9, 10, 7, 8))] == [False, False, False, True, False]


def test_the_first_row_can_be_one() -> None:
    assert next(rows_of(points(8), restarted=True)).restart


def test_of_rows_with_the_same_step_the_last_counts() -> None:
    kept, left_out = merge_repeats([Point(1, 3.0), Point(2, 3.0), Point(2, 4.0), Point(3, 3.0)])
    assert [(point.step, point.loss) for point in kept] == [(1, 3.0), (2, 4.0), (3, 3.0)]
    assert left_out == 1


def test_a_curve_knows_its_stride_and_whether_it_has_norms() -> None:
    assert Curve("a", "a", tuple(points(0, 10, 20))).stride == 10
    assert Curve("a", "a", tuple(points(7))).stride == 1
    assert not Curve("a", "a", tuple(points(7))).has_norm
    assert Curve("a", "a", (Point(0, 1.0, 0.5),)).has_norm


def test_rows_in_another_order_are_sorted() -> None:
    newest_first = points(*reversed(range(50)))
    lexical = points(*sorted(range(200), key=str))
    assert [point.step for point in in_order(newest_first)] == list(range(50))
    assert [point.step for point in in_order(lexical)] == list(range(200))


def test_restarts_and_epochs_that_count_anew_are_in_order() -> None:
    for steps in ((*range(50), *range(30, 80)), tuple(step for _ in range(6) for step in range(10))):
        given = points(*steps)
        assert in_order(given) is given


def descent(first: int, last: int) -> list[Point]:
    return [Point(step, 2.0 + 8.0 / (1 + step)) for step in range(first, last)]


def test_a_second_run_is_known_by_its_first_step_and_loss() -> None:
    twice = descent(0, 100) + descent(0, 100)
    assert run_starts(twice) == [100]
    assert not any(row.restart for row in rows_of(twice))


def test_a_restart_is_no_second_run() -> None:
    assert run_starts(descent(0, 100) + descent(50, 120)) == []
    assert run_starts([*descent(0, 100), Point(0, 2.1), Point(1, 2.1)]) == []
    assert run_starts(descent(5000, 5100) + descent(5000, 5100)) == []
    assert run_starts(points(0, 1, 0, 1)) == []
    assert run_starts([]) == []
