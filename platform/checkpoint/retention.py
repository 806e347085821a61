"""Which checkpoints stay: always what the ladder may need, then what was asked for; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stormsail.platform.checkpoint.lines import Committed, newest_first
from stormsail.platform.errors import ConfigError
from stormsail.platform.messages import CheckpointRef


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What stays and what goes.

    Attributes:
        keep: Oldest step first.
        delete: In the order to delete in: what builds on another goes before it, otherwise the oldest step first.
    """

    keep: tuple[CheckpointRef, ...]
    delete: tuple[CheckpointRef, ...]


def retain(
    commits: Iterable[Committed],
    *,
    good: Collection[CheckpointRef],
    live: Collection[CheckpointRef],
    head_step: int,
    keep_last: int,
    ladder_min_steps: int = 100,
    pinned: Collection[CheckpointRef] = (),
    bases: Mapping[CheckpointRef, CheckpointRef] | None = None,
) -> RetentionPlan:
    """Decide by step numbers, never by names.

    On the live line these stay: the newest good one and the one before it; the newest good one at least
    `ladder_min_steps` before the head (the oldest good one, where none is that old yet); between that one and the head
    one good one in each quarter of `ladder_min_steps`, because as the head moves on, they will be what the ladder needs
    then; the last `keep_last` good ones; and all that are newer than the newest good one, because they are not judged
    yet. Off the line those of the newest superseded generation stay, as a grace. What is pinned stays anywhere.
    A keyframe stays as long as anything that stays builds on it.

    Args:
        commits: All commits that exist.
        good: Those known good, on any line.
        live: Those on the live line.
        head_step: The step that the run has reached.
        keep_last: How many good ones to keep, at least 1.
        ladder_min_steps: How far a rollback or an FP32 replay may want to go back.
        pinned: Never deleted.
        bases: The keyframe of each checkpoint that builds on one.

    Raises:
        ConfigError: `keep_last` is below 1, which would leave nothing to resume from.
    """
    if keep_last < 1:
        raise ConfigError(
            f"{keep_last} checkpoints cannot be kept", where="checkpoint.keep_last", todo="keep at least 1"
        )
    existing = {CheckpointRef(commit.generation, commit.step) for commit in commits}
    on_line = newest_first(existing & set(live))
    keep = existing & set(pinned)
    keep |= _kept_on_line(on_line, set(good), head_step, keep_last, ladder_min_steps)
    keep |= _kept_off_line(existing - set(live))
    keep |= _needed_by(keep, bases or {}) & existing
    return RetentionPlan(_oldest_first(keep), _dependents_first(existing - keep, bases or {}))


def _kept_on_line(
    on_line: list[CheckpointRef], good: set[CheckpointRef], head_step: int, keep_last: int, ladder_min_steps: int
) -> set[CheckpointRef]:
    judged = [ref for ref in on_line if ref in good]
    if not judged:
        return set(on_line)
    newest = judged[0]
    unjudged = set(on_line[: on_line.index(newest)])
    far_back = [ref for ref in judged if ref.step <= head_step - ladder_min_steps]
    anchor = far_back[0] if far_back else judged[-1]
    stones = _stepping_stones(judged, anchor, ladder_min_steps)
    return unjudged | {anchor} | stones | set(judged[: max(2, keep_last)])


def _stepping_stones(judged: list[CheckpointRef], anchor: CheckpointRef, ladder_min_steps: int) -> set[CheckpointRef]:
    """The first good one in each quarter of the way from the anchor to the head, by absolute step.

    The first and not the last, so that one that was kept stays kept until it has become the anchor itself.
    """
    quarter = max(1, ladder_min_steps // 4)
    first: dict[int, CheckpointRef] = {}
    for ref in reversed(judged):
        if ref.step >= anchor.step:
            first.setdefault(ref.step // quarter, ref)
    return set(first.values())


def _kept_off_line(off_line: set[CheckpointRef]) -> set[CheckpointRef]:
    newest = max((ref.generation for ref in off_line), default=None)
    return {ref for ref in off_line if ref.generation == newest}


def _oldest_first(refs: Iterable[CheckpointRef]) -> tuple[CheckpointRef, ...]:
    return tuple(reversed(newest_first(refs)))


def _needed_by(refs: set[CheckpointRef], bases: Mapping[CheckpointRef, CheckpointRef]) -> set[CheckpointRef]:
    needed: set[CheckpointRef] = set()
    for ref in refs:
        base = bases.get(ref)
        while base is not None and base not in needed:  # chains have one link, but nothing may be lost by a longer one
            needed.add(base)
            base = bases.get(base)
    return needed


def _dependents_first(
    refs: set[CheckpointRef], bases: Mapping[CheckpointRef, CheckpointRef]
) -> tuple[CheckpointRef, ...]:
    """So that dying in the middle of deleting leaves no checkpoint without its keyframe."""
    depth = {ref: len(_needed_by({ref}, bases)) for ref in refs}
    return tuple(sorted(_oldest_first(refs), key=lambda ref: -depth[ref]))
