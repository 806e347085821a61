"""Short words for tests of the journal, and a time that passes only by sleeping."""

from __future__ import annotations

from collections.abc import Callable

from stormsail.platform.journal import Event, Journal
from stormsail.platform.storage.store import ObjectStore


class Time:
    """Seconds since the start; `at_sleep` is called after each sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at_sleep()


def add(journal: Journal, kind: str = "step.done", **more: object) -> Event:
    """Append an event of generation 1."""
    return journal.append(kind, time_s=1.0, generation=1, **more)  # type: ignore[arg-type] # for brevity


def kinds(store: ObjectStore) -> list[str]:
    """The kinds of what the journal in the store says, in order."""
    return [event.kind for event in Journal.read(store)]
