"""Lines: which commits belong to the run's present, and which to a past that was rolled back.

The live line is the chain of parents from the newest generation. A generation's commits count up to the step at which
a later generation of the chain forked; those beyond it are superseded. What a cut-off worker commits late is thereby
off the line by construction. Only `create_generation` and `list_generations` touch the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pydantic import ConfigDict

from stormsail.platform.checkpoint.keys import GENERATIONS, generation_key
from stormsail.platform.checkpoint.manifest import Natural
from stormsail.platform.checkpoint.records import RECORD_CONFIG, read_twice, seal, unseal
from stormsail.platform.errors import CheckpointError, FencedError, PreconditionFailedError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore


class Committed(Protocol):
    """A `CheckpointRef`, a `Commit`, or whatever else names a committed checkpoint."""

    @property
    def generation(self) -> int:
        """Generation that wrote it."""

    @property
    def step(self) -> int:
        """Global batches consumed."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One attempt, re-formed world or rollback.

    Attributes:
        number: Only grows.
        parent: The generation whose state it went on from, or None if it began from the initial state.
        fork_step: The step of that state; 0 for the initial one.
        reason: Why it began, in one line.
        owner: Host and process of the supervisor that began it.
        time_s: Seconds since the epoch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = RECORD_CONFIG

    number: Natural
    parent: Natural | None
    fork_step: Natural
    reason: str
    owner: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """One generation's share of the live line.

    Attributes:
        generation: Whose commits.
        through_step: Last step that counts, or None for the newest generation, which is open.
    """

    generation: int
    through_step: int | None


def live_line(generations: Iterable[Generation]) -> tuple[Segment, ...]:
    """The live line, newest generation first; empty if there is no generation.

    Raises:
        CheckpointError: A parent is not there, or is not older than its child.
    """
    known = {generation.number: generation for generation in generations}
    if not known:
        return ()
    current = known[max(known)]
    segments = [Segment(current.number, None)]
    limit: int | None = None
    while current.parent is not None:
        parent = known.get(current.parent)
        if parent is None or parent.number >= current.number:
            raise CheckpointError(
                f"generation {current.number} goes on from generation {current.parent}, which is not there before it",
                where=generation_key(current.number),
            )
        limit = current.fork_step if limit is None else min(limit, current.fork_step)
        segments.append(Segment(parent.number, limit))
        current = parent
    return tuple(segments)


def live_refs(generations: Iterable[Generation], commits: Iterable[Committed]) -> frozenset[CheckpointRef]:
    """The commits on the live line.

    Raises:
        CheckpointError: The generations do not form a line, or commits are of a younger one than all of them.
    """
    line, commits = _line_of(generations, commits)
    return frozenset(CheckpointRef(commit.generation, commit.step) for commit in commits if _on(line, commit))


def newest_first(refs: Iterable[CheckpointRef]) -> list[CheckpointRef]:
    """In the order in which a restore tries them: by step, and of one step the younger generation first."""
    return sorted(refs, key=lambda ref: (ref.step, ref.generation), reverse=True)


def create_generation(store: ObjectStore, generation: Generation) -> None:
    """Claim a generation number, once and for all.

    Raises:
        FencedError: Another supervisor has claimed it.
        StorageError: The store failed; nothing is claimed, or the same call again settles it.
    """
    key = generation_key(generation.number)
    data = seal(generation)
    try:
        store.put(key, data, if_none_match=True)
    except PreconditionFailedError as error:
        if store.get(key) == data:
            return
        raise FencedError(
            f"generation {generation.number} was begun by another supervisor",
            where=key,
            todo="this supervisor is not the run's owner any more, and must stop",
        ) from error


def list_generations(store: ObjectStore) -> list[Generation]:
    """All generations, oldest first.

    Raises:
        CheckpointError: A record is damaged, so that the line cannot be told.
        StorageError: The store failed; never reported as "none".
    """
    found = [load_generation(store, info.key) for info in store.list(GENERATIONS)]
    return sorted(found, key=lambda generation: generation.number)


def load_generation(store: ObjectStore, key: str) -> Generation:
    """One generation's record.

    Raises:
        CheckpointError: It is damaged, or another generation's.
        StorageError: The store failed.
    """
    generation = read_twice(lambda: unseal(store.get(key), Generation, key))
    if generation_key(generation.number) != key:
        raise CheckpointError(f"the object says that it is generation {generation.number}", where=key, objects=(key,))
    return generation


def claimed_numbers(store: ObjectStore) -> list[int]:
    """The numbers that are taken, whether or not their records can be read.

    Raises:
        StorageError: The store failed; never reported as "none".
    """
    names = [info.key.removeprefix(GENERATIONS) for info in store.list(GENERATIONS)]
    return sorted(int(name) for name in names if name.isdecimal())


def _line_of(
    generations: Iterable[Generation], commits: Iterable[Committed]
) -> tuple[tuple[Segment, ...], tuple[Committed, ...]]:
    """The line, and the commits. Who does not know of the youngest generation takes a line that is over for live."""
    line, commits = live_line(generations), tuple(commits)
    newest = max((segment.generation for segment in line), default=0)
    unknown = max((commit.generation for commit in commits), default=0)
    if unknown > newest:
        key = generation_key(unknown)
        raise CheckpointError(
            f"there are checkpoints of generation {unknown}, but no record of how it began",
            where=key,
            todo="the record is lost, or another supervisor has begun that generation",
            objects=(key,),
        )
    return line, commits


def _on(line: tuple[Segment, ...], commit: Committed) -> bool:
    return any(
        segment.generation == commit.generation
        and (segment.through_step is None or commit.step <= segment.through_step)
        for segment in line
    )
