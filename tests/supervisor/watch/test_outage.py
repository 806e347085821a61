"""When a store counts as away."""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.supervisor.watch.outage import PATIENCE_S, News, Outage, observe


def news(story: Sequence[tuple[float, int]]) -> list[News]:
    """What is said while (time, unsent) goes by."""
    known, said = Outage(), []
    for now_s, unsent in story:
        known, new = observe(known, unsent, now_s)
        said += [] if new is None else [new]
    return said


def test_a_store_that_takes_everything_is_no_news() -> None:
    assert news([(0.0, 0), (5.0, 0)]) == []


def test_a_short_gap_is_no_news() -> None:
    assert news([(0.0, 3), (PATIENCE_S, 9), (PATIENCE_S + 1, 0)]) == []


def test_one_outage_is_told_once_and_its_end_with_its_length() -> None:
    story = [(0.0, 3), (10.0, 4), (16.0, 5), (21.0, 6), (60.0, 0), (65.0, 0)]
    assert news(story) == [News("store.away", 16.0), News("store.back", 60.0)]


def test_the_next_outage_is_another_one() -> None:
    story = [(0.0, 1), (20.0, 1), (30.0, 0), (40.0, 1), (60.0, 1)]
    assert [item.kind for item in news(story)] == ["store.away", "store.back", "store.away"]
