"""How values over time are made from rows and events."""

from __future__ import annotations

import pytest
from tests.support.monitored import START_S, happened, steps, view

from stormsail.supervisor.monitors.view import (
    TAIL,
    counted,
    each,
    field,
    latest,
    missed_in_a_row,
    named,
    now,
    number,
    outage,
    over_step,
    ratio_to_median,
    rolling,
    share_of,
    to_median,
    tries_to_save,
)


@pytest.mark.parametrize(("found", "value"), [(3, 3.0), (2.5, 2.5), (True, None), ("3", None), (None, None)])
def test_only_numbers_are_numbers(found: object, value: float | None) -> None:
    assert number(found) == value


def test_only_the_newest_rows_are_looked_at() -> None:
    points = each(field("loss"))(view(steps(TAIL + 50)))
    assert len(points) == TAIL
    assert points[-1].time_s == START_S + TAIL + 49


def test_a_row_without_a_named_value_is_passed_over() -> None:
    rows = steps(4, values={"update.rms": 0.5}) + [{**row, "values": {}} for row in steps(2, first=4)]
    assert [point.value for point in each(named("update.rms"))(view(rows))] == [0.5] * 4
    bare = [{key: value for key, value in row.items() if key != "values"} for row in steps(2)]
    assert each(named("update.rms"))(view(bare)) == []


def test_a_time_is_told_as_a_share_of_its_step() -> None:
    run = view(steps(1, step_s=0.5, values={"time.data_s": 0.1}))
    assert each(over_step("time.data_s"))(run)[0].value == pytest.approx(0.2)
    assert each(over_step("time.comm_s"))(run) == []


def test_a_summary_rolls_over_a_window() -> None:
    series = rolling(field("loss"), max, window=3, least=2)
    values = [point.value for point in series(view(steps(5, loss=lambda step: float(-step))))]
    assert values == [0.0, 0.0, -1.0, -2.0]


def test_the_newest_is_compared_with_those_before() -> None:
    assert to_median([1.0, 2.0, 3.0, 8.0]) == 4.0
    assert to_median([0.0, 0.0, 5.0]) == 1.0
    assert ratio_to_median(field("loss"))(view(steps(20, loss=lambda s: 9.0 if s == 19 else 3.0)))[-1].value == 3.0


def test_a_share_is_of_the_last_rows() -> None:
    run = view(steps(4, outcome=lambda step: "dropped" if step == 1 else "applied"))
    points = share_of(lambda row: row["outcome"] == "dropped", window=2)(run)
    assert [point.value for point in points] == [0.0, 0.5, 0.5, 0.0]


def test_events_are_counted_from_the_start_of_the_run() -> None:
    run = view(events=happened((0, "run.x", {}), (5, "fault", {"kind": "a"}), (9, "fault", {"kind": "b"})))
    assert [(p.time_s - START_S, p.value) for p in counted("fault")(run)] == [(0, 0.0), (5, 1.0), (9, 2.0)]
    assert counted("fault", holds=lambda data: data["kind"] == "b")(run)[-1].value == 1.0
    assert counted("fault")(view()) == []


def test_the_fields_of_events_are_values() -> None:
    run = view(events=happened((1, "saved", {"took_s": 2}), (2, "saved", {}), (3, "saved", {"took_s": 4.0})))
    assert [point.value for point in latest("saved", "took_s")(run)] == [2.0, 4.0]


def test_an_outage_lasts_until_its_end() -> None:
    events = happened((0, "run.x", {}), (10, "away", {}), (30, "back", {}), (40, "away", {}))
    assert outage("away", "back")(view(events=events, now_s=100.0))[-1].value == 60.0
    assert outage("away", "back")(view(events=events[:3]))[-1].value == 0.0


def save(at_s: float, kind: str, step: int) -> tuple[float, str, dict[str, object]]:
    return (at_s, f"checkpoint.{kind}", {"generation": 1, "step": step, "digest": "d", "finite": True})


def test_a_row_of_missed_saves_ends_with_one_that_was_published_and_each_counts_once() -> None:
    told = [
        save(0, "missed", 10),
        save(1, "missed", 10),
        save(2, "missed", 20),
        save(3, "committed", 30),
        save(4, "missed", 40),
    ]
    run = view(events=happened(*told))
    assert [point.value for point in missed_in_a_row()(run)] == [0.0, 1.0, 2.0, 0.0, 1.0]
    assert [missed for _, missed in tries_to_save(run)] == [True, True, False, True]


def test_what_is_known_now_is_one_point_or_none() -> None:
    assert [point.value for point in now(lambda _view: 3.0)(view())] == [3.0]
    assert now(lambda _view: None)(view()) == []
