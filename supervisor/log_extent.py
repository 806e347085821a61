"""How far the gradient log leads on from a checkpoint: asked before a generation begins, because it forks there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stormsail.platform.checkpoint.keys import log_prefix
from stormsail.platform.checkpoint.lines import Generation, live_line
from stormsail.platform.checkpoint.log_line import Reach, logged, reach
from stormsail.platform.checkpoint.log_place import LogPlace


def find_reach(
    source: LogPlace, generations: Sequence[Generation], *, step: int, world_size: int, stop: int | None
) -> Reach:
    """Look which steps of the live line, from `step` on, all ranks have logged; nothing is read, only listed.

    Args:
        source: Where the log is.
        generations: All there are so far.
        step: The next step of the restored state.
        world_size: Ranks that will replay.
        stop: Step that the run ends at, or None.

    Raises:
        StorageError: The store failed; never reported as "none".
    """
    found = logged(_keys(source, generations, step))
    return reach(generations, found, step=step, world_size=world_size, stop=stop)


def _keys(source: LogPlace, generations: Sequence[Generation], step: int) -> Iterator[str]:
    for segment in live_line(generations):
        if segment.through_step is None or segment.through_step > step:
            prefix = log_prefix(segment.generation)
            for info in source.list(prefix, start_after=f"{prefix}{step:012d}"):
                yield info.key
