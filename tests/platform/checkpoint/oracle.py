"""Harms the objects of a played history, and compares what the reader says with what was done."""

from __future__ import annotations

import pytest
from tests.platform.checkpoint.conftest import State
from tests.platform.checkpoint.history import SHAPES, History

from stormsail.platform.checkpoint.commits import Problem, scan_commits
from stormsail.platform.checkpoint.folding import folded
from stormsail.platform.checkpoint.keys import (
    FOLD_MANIFESTS,
    FOLDS,
    GENERATIONS,
    commit_key,
    fold_key,
    generation_key,
    is_fold_pack,
    manifest_key,
    owner_of,
)
from stormsail.platform.checkpoint.lines import list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.manifest import Commit
from stormsail.platform.checkpoint.reader import verify
from stormsail.platform.checkpoint.verify import record_problems
from stormsail.platform.errors import CheckpointError, StorageError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore


def harm(history: History) -> set[str]:
    """Harm up to two objects of the run; gives the keys of those that are not as they were."""
    history.folds = folded(history.store)
    everything = [info.key for info in history.store.list()]
    keys = sorted(key for key in everything if owner_of(key) is not None)
    if history.happens(0.1):
        keys = sorted(key for key in everything if key.startswith(GENERATIONS))
    harmed: set[str] = set()
    for _ in range(history.random.choice((0, 1, 1, 2)) if keys else 0):
        key = history.random.choice(keys)
        before = _body(history.store, key)
        kind = history.random.choice(("flip", "cut", "lose", "swap", "stale", "grow"))
        after = _harmed(history, key, before, keys, kind)
        if after is None:
            history.store.delete(key)
        else:
            history.store.put(key, after)
        if after != before:
            harmed.add(key)
            history.note(kind, key)
    return harmed


def _body(store: MemoryStore, key: str) -> bytes:
    return store.get(key) if key in {info.key for info in store.list()} else b""


def _harmed(history: History, key: str, body: bytes, keys: list[str], kind: str) -> bytes | None:
    draw = history.random
    if kind == "lose" or not body:
        return None
    if kind == "flip":
        place = draw.randrange(len(body))
        return body[:place] + bytes([body[place] ^ (1 << draw.randrange(8))]) + body[place + 1 :]
    if kind == "cut":
        return body[: draw.randrange(len(body))]
    if kind == "grow":
        return body + draw.randbytes(draw.randint(1, 9))
    group = key.partition("/")[0]
    others = [other for other in keys if kind == "swap" or other.partition("/")[0] == group]
    return _body(history.store, draw.choice(others)) or None


def judge(history: History, harmed: set[str]) -> None:
    """The oracle: compare what the reader says with what was done."""
    history.store.come_back()
    scan = scan_commits(history.store)
    unreadable = {problem.key for problem in scan.problems}
    assert unreadable <= harmed, "a commit that nobody harmed cannot be read"
    gone = history.promised - {item.ref for item in scan.commits}
    assert {commit_key(ref) for ref in gone} <= harmed, f"{gone} were committed, and are not there any more"
    for item in scan.commits:
        _judge_one(history, item, harmed)
    spoilt = {key for key in harmed if key.startswith(GENERATIONS)}
    if spoilt:
        _judge_line(history, scan.commits, spoilt)
    else:
        _judge_choice(history, scan.commits, harmed)
    _judge_flaky(history, scan.commits)


def _judge_one(history: History, item: Commit, harmed: set[str]) -> None:
    concerned = {key for key in harmed if owner_of(key) in (item.ref, item.base)}
    problems = verify(history.store, item)
    if item.ref in history.dropped and any(_is_of_fold(key) for key in concerned):
        # Where the fold cannot be read, what was dropped is missed: in part, if who deleted it died.
        concerned |= {key for key in _named(problems, item) if not _is_there(history, key)}
    assert {problem.key for problem in problems} <= concerned, f"{item.ref}: {problems} name what nobody harmed"
    own = {key for key in harmed if owner_of(key) == item.ref and _is_of_use(history, item, key)}
    assert bool(problems) or not own, f"{item.ref}: harm at {own} went unseen"
    readers = history.random.randint(1, 3)
    restored = _restored(history, item.ref, readers)
    if isinstance(restored, CheckpointError):
        assert concerned, f"{item.ref} does not restore, and nobody harmed it: {restored}"
        assert not _has_a_whole_form(history, item, harmed), f"{item.ref} does not restore, though it could: {restored}"
        assert set(restored.objects) <= concerned, f"{item.ref}: {restored.objects} are named, {concerned} were harmed"
        history.note("detected", f"{item.ref}: {restored.what}")
        return
    assert history.kit.same(restored, history.saved[item.ref]), f"WRONG RESTORE of {item.ref}"
    history.note("restored", f"{item.ref} on {readers}")


def _named(problems: list[Problem], item: Commit) -> set[str]:
    """The objects of the checkpoint as it was committed that are named, and its manifest."""
    own = {problem.key for problem in problems if owner_of(problem.key) == item.ref}
    return {key for key in own | {manifest_key(item.ref)} if not _is_of_fold(key)}


def _is_of_use(history: History, item: Commit, key: str) -> bool:
    """Whether harm there has to be seen: not to what a dead fold left, nor to the differences of what was folded.

    A fold whose record is lost is as if there were none, if the differences are still there.
    """
    if key == commit_key(item.ref):
        return True
    lost = not _is_there(history, fold_key(item.ref)) and _is_there(history, manifest_key(item.ref))
    return _is_of_fold(key) == (item.ref in history.folds and not lost)


def _has_a_whole_form(history: History, item: Commit, harmed: set[str]) -> bool:
    """Whether nobody harmed the fold, or nobody the differences and their keyframe."""
    if commit_key(item.ref) in harmed:
        return False
    own = {key for key in harmed if owner_of(key) == item.ref}
    fold_whole = item.ref in history.folds and not any(map(_is_of_fold, own))
    differences_whole = item.ref not in history.dropped and all(map(_is_of_fold, own))
    return fold_whole or (differences_whole and not any(owner_of(key) == item.base for key in harmed))


def _is_of_fold(key: str) -> bool:
    return key.startswith((FOLDS, FOLD_MANIFESTS)) or is_fold_pack(key)


def _is_there(history: History, key: str) -> bool:
    return key in {info.key for info in history.store.list(key)}


def _restored(history: History, ref: CheckpointRef, readers: int) -> State | CheckpointError:
    try:
        return history.kit.restore(history.store, ref, readers, shapes=SHAPES)
    except CheckpointError as error:
        return error


def _judge_line(history: History, commits: tuple[Commit, ...], spoilt: set[str]) -> None:
    """A generation that cannot be read leaves the line untold: an error that names it, never another line."""
    there = {info.key for info in history.store.list(GENERATIONS)}
    assert {problem.key for problem in record_problems(history.store)} == spoilt & there
    newest = generation_key(max((item.generation for item in commits), default=0))
    is_younger_than_all = newest > max(there, default="")  # otherwise those that are there tell the line
    if spoilt & there or (newest in spoilt - there and is_younger_than_all):
        with pytest.raises(CheckpointError) as caught:
            live_refs(list_generations(history.store), commits)
        assert set(caught.value.objects) <= spoilt
        history.note("line untold")


def _judge_choice(history: History, commits: tuple[Commit, ...], harmed: set[str]) -> None:
    """The newest of the live line that nobody harmed is there to go on from, and only harmed ones are passed over."""
    bases = {item.ref: item.base for item in commits}
    hurt = {owner_of(key) for key in harmed}
    order = newest_first(live_refs(list_generations(history.store), commits))
    chosen = next((ref for ref in order if not verify(history.store, ref)), None)
    passed = order if chosen is None else order[: order.index(chosen)]
    assert all(ref in hurt or bases[ref] in hurt for ref in passed), f"{passed} were passed over for nothing"
    if chosen is None:
        assert len(passed) == len(order)
        return
    if passed:
        history.note("fallen back", f"from {passed[0]} to {chosen}")
    assert history.kit.same(history.kit.restore(history.store, chosen, 1, shapes=SHAPES), history.saved[chosen])


def _judge_flaky(history: History, commits: tuple[Commit, ...]) -> None:
    """A read that fails is an error of the store, not of the checkpoint, and after it everything is as before."""
    if not commits or history.happens(0.5):
        return
    item = history.random.choice(commits)
    before: list[Problem] = verify(history.store, item)
    history.store.go_away(history.random.randint(1, 6))
    try:
        found = verify(history.store, item)
    except StorageError:
        history.note("store failed")
    else:
        assert found == before
    history.store.come_back()
    assert verify(history.store, item) == before
