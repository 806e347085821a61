"""Plays a history: saves, retention, sweeps, folds and new generations, as drawn, with the real code and its faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.platform.checkpoint.history import SHAPES, Held, History
from tests.support.differences import tiny_keyframe

from stormsail.platform.checkpoint.chain import Chain, ChainPolicy, choose, extend
from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.folding import drop_original, fold, folded, freed
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.lines import list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.manifest import RankPart
from stormsail.platform.checkpoint.retention import Keep, retain
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.errors import CheckpointError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

T = TypeVar("T")

POLICY = ChainPolicy(max_deltas=3)
GRACE_S = 100.0


def save(history: History) -> None:
    """Ten steps and a save. A writer that dies makes the next generation begin; a store that stalls costs the save."""
    history.step += 10
    history.state = history.kit.drift(history.state, history.random.randrange(1 << 30))
    ref = CheckpointRef(history.generation, history.step)
    history.saved[ref] = history.state
    problem = next(filter(None, (item.problem(history.store) for item in history.keyframes)), "")
    choice = choose(
        history.chain,
        generation=history.generation,
        world_size=history.world_size,
        problem=problem,
        policy=POLICY,
    )
    history.note("difference" if choice.base else "keyframe", f"{ref} {choice.reason}")
    bases = history.keyframes if choice.base else ()
    store: ObjectStore = history.store
    calm = not history.promised and history.happens(0.8)  # what has no past has little to lose
    stalled = not calm and history.draw_stall(0.15, 12)
    if not stalled and not calm:
        store = history.draw_deadly(0.25, 14)
    try:
        parts = _write(history, store, ref, bases)
        if history.happens(0.1):
            history.store.come_back()
            history.held.append(Held(ref, history.world_size, parts))
            history.note("held", f"{ref}: written, and its world is cut off")
            begin_again(history)
            return
        _commit(history, store, ref, history.world_size, parts)
    except StorageUnavailableError:
        if stalled:
            history.note("missed", f"{ref}: the store was away")
            history.store.come_back()
            history.chain, history.keyframes = Chain(), []
        else:
            begin_again(history)
        return
    history.store.come_back()
    if not bases:
        history.keyframes = [_keyframe(history, part) for part in parts]
    stored = sum(part.stored_bytes for part in parts)
    history.chain = extend(history.chain, choice, ref=ref, world_size=history.world_size, stored_bytes=stored)


def _write(history: History, store: ObjectStore, ref: CheckpointRef, bases: Sequence[Keyframe]) -> list[RankPart]:
    pack_bytes = history.random.choice((120, 10_000))

    def write() -> list[RankPart]:
        return history.kit.parts(
            store, history.state, ref, history.world_size, shapes=SHAPES, pack_bytes=pack_bytes, bases=bases
        )

    return _twice(history, write) if store is history.store else write()


def _commit(
    history: History, store: ObjectStore, ref: CheckpointRef, world_size: int, parts: Sequence[RankPart]
) -> None:
    def publish() -> None:
        commit(store, parts, history.kit.meta(ref.step, world_size), parent=None, time_s=history.now_s)

    if store is history.store:
        _twice(history, publish)
    else:
        publish()
    history.promised.add(ref)


def _twice(history: History, action: Callable[[], T]) -> T:
    """What a store that was away did not answer is sometimes done once more, and must then be as if done once."""
    try:
        return action()
    except StorageUnavailableError:
        if not history.happens(0.6):
            raise
        history.note("again")
        return action()


def _keyframe(history: History, part: RankPart) -> Keyframe:
    return tiny_keyframe(part, history.kit.shards(history.state, history.kit.specs(part.rank, part.world_size, SHAPES)))


def commit_late(history: History) -> None:
    """A world that was cut off comes to its commit after others have gone on."""
    late = history.held.pop(history.random.randrange(len(history.held)))
    try:
        _commit(history, history.draw_deadly(0.2, 6), late.ref, late.world_size, late.parts)
    except StorageUnavailableError:
        history.note("late, died", str(late.ref))
    except CheckpointError as error:
        history.note("late, refused", f"{late.ref}: {error.what}")
    else:
        history.note("late", str(late.ref))


def begin_again(history: History, *, back: int = 0) -> None:
    """A new generation on any world size, from the newest checkpoint of the live line or from one further back."""
    commits = scan_commits(history.store).commits
    live = newest_first(live_refs(list_generations(history.store), commits))
    history.world_size = history.random.randint(1, 3)
    history.chain, history.keyframes = Chain(), []
    parent = history.generation
    history.generation += 1
    if not live:
        history.step, history.state = 0, history.kit.state(history.seed, SHAPES)
        history.kit.generation(history.store, history.generation)
        history.note("from the start")
        return
    ref = live[min(back, len(live) - 1)]
    history.state = history.kit.restore(history.store, ref, history.world_size, shapes=SHAPES)
    assert history.kit.same(history.state, history.saved[ref]), f"{ref} came back as another state"
    history.step = ref.step
    # The new line forks off the generation that wrote the checkpoint, at its step.
    history.kit.generation(history.store, history.generation, ref.generation, ref.step)
    history.note("rolled back" if back else "resumed", f"from {ref} (generation {parent} is over)")


def prune(history: History) -> None:
    """Retention, by a collector that may die, or whose store may go away."""
    commits = scan_commits(history.store).commits
    live = live_refs(list_generations(history.store), commits)
    good = [ref for ref in newest_first(live) if history.happens(0.9)]
    free = freed(history.store, folded(history.store))
    plan = retain(
        commits,
        good=good,
        live=live,
        head_step=history.step,
        rules=Keep(history.random.randint(1, 2), ladder_steps=20),
        pinned=history.pinned,
        bases={item.ref: item.base for item in commits if item.base is not None and item.ref not in free},
    )
    assert history.pinned <= set(plan.keep), "what was pinned is to be deleted"
    readable = [item for item in commits if item.ref in plan.keep and item.ref not in history.dropped]
    assert {item.base for item in readable} <= {None, *plan.keep}, "a keyframe is to be deleted that may be read"
    history.note("pruned", f"{len(plan.delete)} of {len(commits)}")
    history.promised -= set(plan.delete)
    try:
        stalled = history.draw_stall(0.1, 10)
        collect(history.store if stalled else history.draw_deadly(0.8, 4), plan)
    except StorageUnavailableError:
        history.note("collector died")
    history.store.come_back()
    left = {item.ref for item in scan_commits(history.store).commits}
    assert set(plan.keep) <= left, "what is kept was deleted"


def sweep(history: History) -> None:
    """Litter of the dead, long after; the sweeper may die too."""
    history.now_s += 10 * GRACE_S
    try:
        removed = collect_litter(history.draw_deadly(0.2, 8), now_s=history.now_s, grace_s=GRACE_S)
    except StorageUnavailableError:
        history.note("sweeper died")
    else:
        history.note("swept", f"{len(removed.deleted)} objects")


def fold_one(history: History) -> None:
    """A checkpoint is folded by a process that may die, while a supervisor that starts may sweep at any moment."""
    folds = folded(history.store)
    waiting = [item.ref for item in scan_commits(history.store).commits if item.base and item.ref not in folds]
    if not waiting:
        return
    ref = history.random.choice(waiting)
    leased = history.happens(0.7)
    swept = _sweep_at_some_moment(history, {ref} if leased else set())
    try:
        fold(history.draw_deadly(0.3, 12), ref, time_s=history.now_s, cancelled=swept, pack_bytes=120)
    except StorageUnavailableError:
        history.note("fold died", str(ref))
    except CheckpointError:
        if leased:
            raise
        history.note("fold swept", str(ref))
    else:
        history.note("folded", str(ref))
        assert history.kit.same(history.kit.restore(history.store, ref, 1, shapes=SHAPES), history.saved[ref])
        if history.happens(0.6):
            history.pinned.add(ref)  # what is folded is what stays for long
        if history.happens(0.4):
            drop_one(history)


def _sweep_at_some_moment(history: History, spare: set[CheckpointRef]) -> Callable[[], bool]:
    """To be asked again and again; always says no, and once sweeps, long after."""
    moment, asked = history.random.randrange(20), itertools.count()

    def swept() -> bool:
        if next(asked) == moment:
            history.now_s += 10 * GRACE_S
            removed = collect_litter(history.store, now_s=history.now_s, grace_s=GRACE_S, spare=spare)
            history.note("swept in a fold", f"spared: {len(spare)}, {len(removed.deleted)} objects")
        return False

    return swept


def drop_one(history: History) -> None:
    """The differences of a folded one go; who deletes them may die."""
    folds = folded(history.store)
    waiting = [item for item in scan_commits(history.store).commits if item.ref in folds]
    if not waiting:
        return
    item = history.random.choice(waiting)
    history.dropped.add(item.ref)
    try:
        drop_original(history.draw_deadly(0.3, 8), item)
    except StorageUnavailableError:
        history.note("dropping died", str(item.ref))
    else:
        history.note("dropped", str(item.ref))


def pin_one(history: History) -> None:
    """A person keeps a checkpoint."""
    commits = scan_commits(history.store).commits
    if commits:
        ref = history.random.choice(commits).ref
        history.pinned.add(ref)
        history.note("pinned", str(ref))


_KINDS = {
    "save": (save, 12),
    "again": (begin_again, 2),
    "back": (lambda history: begin_again(history, back=history.random.randint(1, 2)), 2),
    "prune": (prune, 4),
    "sweep": (sweep, 2),
    "fold": (fold_one, 5),
    "drop": (drop_one, 4),
    "pin": (pin_one, 1),
    "late": (commit_late, 10),
}


def play(history: History) -> None:
    """Some of everything."""
    save(history)
    for _ in range(history.random.randint(1, 7)):
        kinds = [kind for kind in _KINDS if kind != "late" or history.held]
        kind = history.random.choices(kinds, [_KINDS[name][1] for name in kinds])[0]
        _KINDS[kind][0](history)
