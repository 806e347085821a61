"""Which checkpoints stay: always what the ladder may need, then what was asked for; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stormsail.platform.checkpoint.evaluated import Evaluated, best_of
from stormsail.platform.checkpoint.lines import Committed, newest_first
from stormsail.platform.errors import ConfigError
from stormsail.platform.messages import CheckpointRef


@dataclass(frozen=True, slots=True)
class Keep:
    """What to keep besides what the ladder may need; all of it known good, on the live line.

    Attributes:
        last: The newest ones, at least 1.
        every_steps: The first one in each stretch of so many steps; None for none.
        every_s: The first one in each stretch of so many seconds, by the committers' clocks; None for none.
        best: Whether the one with the lowest evaluation loss over the samples that the newest of them is over.
        ladder_steps: How far a rollback or an FP32 replay may want to go back.
    """

    last: int
    every_steps: int | None = None
    every_s: float | None = None
    best: bool = False
    ladder_steps: int = 100


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What stays and what goes.

    Attributes:
        keep: Oldest step first.
        delete: In the order to delete in: what builds on another goes before it, otherwise the oldest step first.
        lasting: Those of `keep` that no newer checkpoint will push out: pinned, or one of each stretch.
    """

    keep: tuple[CheckpointRef, ...]
    delete: tuple[CheckpointRef, ...]
    lasting: tuple[CheckpointRef, ...] = ()


def retain(
    commits: Iterable[Committed],
    *,
    good: Collection[CheckpointRef],
    live: Collection[CheckpointRef],
    head_step: int,
    rules: Keep,
    pinned: Collection[CheckpointRef] = (),
    held: Collection[CheckpointRef] = (),
    times: Mapping[CheckpointRef, float] | None = None,
    evaluated: Iterable[Evaluated] = (),
    bases: Mapping[CheckpointRef, CheckpointRef] | None = None,
) -> RetentionPlan:
    """Decide by step numbers, never by names.

    On the live line these stay: the newest good one and the one before it; the newest good one at least
    `rules.ladder_steps` before the head (the oldest good one, where none is that old yet); between that one and the
    head one good one in each quarter of `rules.ladder_steps`, because as the head moves on, they will be what the
    ladder needs then; what the other rules ask for; and all that are newer than the newest good one, because they are
    not judged yet. Off the line those of the newest superseded generation stay, as a grace. What is pinned or held
    stays anywhere. A keyframe stays as long as anything that stays builds on it.

    Args:
        commits: All commits that exist.
        good: Those known good, on any line.
        live: Those on the live line.
        head_step: The step that the run has reached.
        rules: What to keep.
        pinned: Kept until somebody unpins them.
        held: Kept for now: somebody reads them.
        times: When each was committed, in seconds since the epoch; for `rules.every_s`.
        evaluated: What the evaluated ones lost on held-out samples; for `rules.best`.
        bases: The keyframe of each checkpoint that cannot be read without it.

    Raises:
        ConfigError: `rules.last` is below 1, which would leave nothing to resume from.
    """
    if rules.last < 1:
        raise ConfigError(
            f"{rules.last} checkpoints cannot be kept", where="checkpoint.keep_last", todo="keep at least 1"
        )
    existing = {CheckpointRef(commit.generation, commit.step) for commit in commits}
    on_line = newest_first(existing & set(live))
    judged = [ref for ref in on_line if ref in good]
    lasting = existing & set(pinned) | _one_of_each(judged, rules, times or {})
    keep = lasting | existing & set(held)
    best = best_of(evaluated, set(judged)) if rules.best else None
    keep |= set() if best is None else {best}
    keep |= _kept_on_line(on_line, set(good), head_step, rules)
    keep |= _kept_off_line(existing - set(live))
    keep |= _needed_by(keep, bases or {}) & existing
    return RetentionPlan(_oldest_first(keep), _dependents_first(existing - keep, bases or {}), _oldest_first(lasting))


def standing(live: Collection[CheckpointRef], good: Collection[CheckpointRef]) -> tuple[CheckpointRef, ...]:
    """Those on the live line that are known good, or newer than all that are and so not judged yet; newest first."""
    on_line = newest_first(live)
    newest = next((place for place, ref in enumerate(on_line) if ref in good), len(on_line))
    return tuple(ref for place, ref in enumerate(on_line) if place < newest or ref in good)


def to_fold(
    plan: RetentionPlan, bases: Mapping[CheckpointRef, CheckpointRef], folds: Collection[CheckpointRef]
) -> tuple[CheckpointRef, ...]:
    """What is worth writing once more as a keyframe: it stays for long, and the run builds on another keyframe by now.

    Its own keyframe and its differences may go then, nearly half of what it takes. The best one is left as it is: while
    a run still learns, the next evaluation pushes it out, and a fold reads and writes a whole state.

    Args:
        plan: What stays.
        bases: The keyframe of each checkpoint that was written as differences.
        folds: Those that were written once more already.
    """
    newest = max(plan.keep, key=lambda ref: (ref.generation, ref.step), default=None)
    current = bases.get(newest) if newest is not None else None
    return tuple(ref for ref in plan.lasting if ref in bases and ref not in folds and bases[ref] != current)


def _one_of_each(judged: list[CheckpointRef], rules: Keep, times: Mapping[CheckpointRef, float]) -> set[CheckpointRef]:
    """The first good one of each stretch: the first and not the last, so that what was kept once stays kept."""
    found: dict[tuple[str, int], CheckpointRef] = {}
    for ref in reversed(judged):
        if rules.every_steps is not None:
            found.setdefault(("steps", ref.step // rules.every_steps), ref)
        if rules.every_s is not None and ref in times:
            found.setdefault(("time", int(times[ref] // rules.every_s)), ref)
    return set(found.values())


def _kept_on_line(
    on_line: list[CheckpointRef], good: set[CheckpointRef], head_step: int, rules: Keep
) -> set[CheckpointRef]:
    judged = [ref for ref in on_line if ref in good]
    if not judged:
        return set(on_line)
    newest = judged[0]
    unjudged = set(on_line[: on_line.index(newest)])
    far_back = [ref for ref in judged if ref.step <= head_step - rules.ladder_steps]
    anchor = far_back[0] if far_back else judged[-1]
    stones = _stepping_stones(judged, anchor, rules.ladder_steps)
    return unjudged | {anchor} | stones | set(judged[: max(2, rules.last)])


def _stepping_stones(judged: list[CheckpointRef], anchor: CheckpointRef, ladder_steps: int) -> set[CheckpointRef]:
    """The first good one in each quarter of the way from the anchor to the head, by absolute step.

    The first and not the last, so that one that was kept stays kept until it has become the anchor itself.
    """
    quarter = max(1, ladder_steps // 4)
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
