"""Which checkpoint a restore would end up with, for tests that damage some."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stormsail.platform.checkpoint.commits import Problem
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore


def first_sound(
    store: ObjectStore,
    candidates: Iterable[CheckpointRef],
    *,
    on_problem: Callable[[CheckpointRef, list[Problem]], None],
) -> CheckpointRef | None:
    """The first candidate, in the order given, that verifies; each one passed over is reported."""
    for ref in candidates:
        problems = verify(store, ref)
        if not problems:
            return ref
        on_problem(ref, problems)
    return None
