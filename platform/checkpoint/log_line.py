"""Which steps of the gradient log lead on from a checkpoint, and which nobody needs any more; pure.

The entry of a step leads from the state before it to the state after it. Each step of the live line was computed by
one generation: the newest whose first step it does not lie before. What any other generation logged of that step is
superseded, as its commits are, and never replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormsail.platform.checkpoint.keys import log_place
from stormsail.platform.checkpoint.lines import Generation, live_line
from stormsail.platform.messages import CheckpointRef, LogSpan

Logged = Mapping[CheckpointRef, Collection[int]]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the log leads.

    Attributes:
        spans: Steps to replay, oldest first, without a gap; none if there is nothing to replay.
        why_not_further: What the first step beyond them lacks; "" if nobody logged any of it.
    """

    spans: tuple[LogSpan, ...] = ()
    why_not_further: str = ""


def logged(keys: Iterable[str]) -> dict[CheckpointRef, set[int]]:
    """The ranks that logged each step, from the objects' keys; a step is named by generation and number."""
    found: dict[CheckpointRef, set[int]] = {}
    for key in keys:
        place = log_place(key)
        if place is not None:
            found.setdefault(CheckpointRef(place[0], place[1]), set()).add(place[2])
    return found


def reach(
    generations: Sequence[Generation], entries: Logged, *, step: int, world_size: int, stop: int | None = None
) -> Reach:
    """The steps from `step` on that all ranks have logged, without a gap.

    Args:
        generations: All there are; the newest one's line is followed.
        entries: The ranks that logged each step.
        step: The next step of the restored state.
        world_size: Ranks that will replay; a step that more, or fewer, have logged does not count.
        stop: A step that is not to be replayed, nor any after it.

    Raises:
        CheckpointError: The generations do not form a line.
    """
    owners, ranks = _Owners(generations), set(range(world_size))
    spans: list[LogSpan] = []
    while stop is None or step < stop:
        generation = owners.of(step)
        if generation is None:
            break
        found = set(entries.get(CheckpointRef(generation, step), ()))
        if found != ranks:
            return Reach(tuple(spans), _lack(step, found, ranks))
        step += 1
        if spans and spans[-1].generation == generation:
            spans[-1] = LogSpan(generation, spans[-1].first, step)
        else:
            spans.append(LogSpan(generation, step - 1, step))
    return Reach(tuple(spans))


def spare(generations: Sequence[Generation], keys: Iterable[str], *, from_step: int) -> list[str]:
    """Keys of the log that may go: of steps before `from_step`, and of steps off the live line.

    Args:
        generations: All there are.
        keys: Keys of the log; others are left out.
        from_step: Step of the oldest checkpoint from which the log may still be replayed.

    Raises:
        CheckpointError: The generations do not form a line.
    """
    owners = _Owners(generations)
    newest = max((generation.number for generation in generations), default=0)
    found = []
    for key in keys:
        place = log_place(key)
        if place is None or place[0] > newest:  # what a generation that is not known here writes is not ours to judge
            continue
        if place[1] < from_step or owners.of(place[1]) != place[0]:
            found.append(key)
    return found


class _Owners:
    """Which generation computed each step of the live line."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        first = {generation.number: generation.fork_step for generation in generations}
        self._starts = [(segment.generation, first[segment.generation]) for segment in live_line(generations)]

    def of(self, step: int) -> int | None:
        return next((generation for generation, start in self._starts if start <= step), None)


def _lack(step: int, found: set[int], ranks: set[int]) -> str:
    if not found:
        return ""
    missing, foreign = sorted(ranks - found), sorted(found - ranks)
    parts = [f"rank {', '.join(map(str, missing))} did not log it"] if missing else []
    parts += [f"rank {', '.join(map(str, foreign))}, which the world does not have, did"] if foreign else []
    return f"step {step}: {' and '.join(parts)}"
