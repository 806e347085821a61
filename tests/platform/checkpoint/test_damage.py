"""Any damage to any object of a real chain: seen, named, and never restored; the newest whole state stands in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.checkpoint.conftest import State
from tests.support.first_sound import first_sound

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.keys import commit_key, owner_of
from stormsail.platform.checkpoint.lines import list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.reader import load_manifest, verify
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tests.platform.checkpoint.conftest import Kit

FIRST, OTHER, BASE = CheckpointRef(1, 10), CheckpointRef(1, 20), CheckpointRef(2, 20)
DELTAS = (CheckpointRef(2, 30), CheckpointRef(2, 40))
LINE = (FIRST, BASE, *DELTAS)


@dataclass(frozen=True)
class Run:
    """Two generations of two ranks: a keyframe, one that was superseded, a keyframe again and two differences to it."""

    objects: dict[str, bytes]
    states: dict[CheckpointRef, State]

    def copy(self) -> MemoryStore:
        store = MemoryStore()
        for key, body in self.objects.items():
            store.put(key, body)
        return store

    def owned(self) -> list[str]:
        return sorted(key for key in self.objects if owner_of(key) in LINE)


@pytest.fixture(scope="module")
def run(kit: Kit) -> Run:
    store = kit.store()
    kit.generation(store, 1)
    states = {FIRST: kit.state(1)}
    states[OTHER] = kit.drift(states[FIRST], 2)
    kit.save(store, states[FIRST], FIRST)
    kit.save(store, states[OTHER], OTHER)
    kit.generation(store, 2, 1, 10)
    states[BASE] = kit.drift(states[FIRST], 3)
    bases = kit.keyframes(store, states[BASE], BASE)
    for ref in DELTAS:
        states[ref] = kit.drift(states[BASE], ref.step)
        kit.save(store, states[ref], ref, bases=bases)
    assert load_manifest(store, DELTAS[1]).base == BASE
    return Run({info.key: store.get(info.key) for info in store.list()}, states)


def twin(run: Run, key: str) -> str:
    """The object of the same kind that another generation wrote at the same step, or another checkpoint's."""
    group, rank = key.partition("/")[0], key[-5:]
    ours = owner_of(key)
    others = [other for other in run.objects if other.startswith(f"{group}/") and owner_of(other) not in (None, ours)]
    stale = [other for other in others if owner_of(other) == OTHER and (group == "commits" or other[-5:] == rank)]
    return (stale or others)[0]


@st.composite
def damages(draw: st.DrawFn, run: Run) -> dict[str, bytes | None]:
    """What one or two objects are afterwards; None is lost."""
    done: dict[str, bytes | None] = {}
    for _ in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from(run.owned()))
        body = run.objects[key]
        kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "lose", "swap", "stale", "grow", "blank"]))
        place = draw(st.integers(0, len(body) - 1))
        if kind == "flip":
            done[key] = body[:place] + bytes([body[place] ^ (1 << draw(st.integers(0, 7)))]) + body[place + 1 :]
        elif kind == "cut":
            done[key] = body[:place]
        elif kind == "lose":
            done[key] = None
        elif kind == "swap":
            other = draw(st.sampled_from(run.owned()))
            done[key], done[other] = run.objects[other], body
        elif kind == "stale":
            done[key] = run.objects[twin(run, key)]
        elif kind == "grow":
            done[key] = body + draw(st.binary(min_size=1, max_size=9))
        else:
            stop = min(len(body), place + 512)
            done[key] = body[:place] + bytes(stop - place) + body[stop:]
    return {key: body for key, body in done.items() if body != run.objects[key]}


def check(kit: Kit, run: Run, harmed: dict[str, bytes | None], *, everywhere: bool = False) -> None:
    """What the harm concerns, or all there is, and what stands in."""
    store = run.copy()
    for key, body in harmed.items():
        if body is None:
            store.delete(key)
        else:
            store.put(key, body)
    hurt = {owner_of(key) for key in harmed}
    for ref in LINE:
        if everywhere or ref in hurt or (ref in DELTAS and BASE in hurt):
            _check_one(kit, run, store, ref, set(harmed))
    _check_fall_back(kit, run, store, set(harmed))


def _check_one(kit: Kit, run: Run, store: MemoryStore, ref: CheckpointRef, harmed: set[str]) -> None:
    base = BASE if ref in DELTAS else None
    concerned = {key for key in harmed if owner_of(key) in (ref, base)}
    own = {key for key in harmed if owner_of(key) == ref}
    problems = {problem.key for problem in verify(store, ref)}
    assert problems <= concerned
    assert bool(problems) or not own, f"{own} went unseen"
    restored = _restored(kit, store, ref)
    if isinstance(restored, CheckpointError):
        assert set(restored.objects) <= concerned
        assert restored.objects
    else:  # the damage lies in what a restore does not need
        assert kit.same(restored, run.states[ref]), f"WRONG RESTORE of {ref}"


def _restored(kit: Kit, store: MemoryStore, ref: CheckpointRef) -> State | CheckpointError:
    try:
        return kit.restore(store, ref, 2)
    except CheckpointError as error:
        return error


def _check_fall_back(kit: Kit, run: Run, store: MemoryStore, harmed: set[str]) -> None:
    commits = scan_commits(store).commits
    order = newest_first(live_refs(list_generations(store), commits))
    assert OTHER not in order
    chosen = first_sound(store, order, on_problem=lambda _ref, _problems: None)
    hurt = {owner_of(key) for key in harmed}
    whole = [ref for ref in LINE if ref not in hurt and not (ref in DELTAS and BASE in hurt)]
    newest = max(whole, key=lambda ref: ref.step, default=None)
    if chosen is None:
        assert newest is None
        return
    assert newest is None or chosen.step >= newest.step
    assert kit.same(kit.restore(store, chosen, 3), run.states[chosen])


@settings(max_examples=25)
@given(data=st.data())
def test_damage_is_seen_and_the_newest_whole_state_stands_in(kit: Kit, run: Run, data: st.DataObject) -> None:
    check(kit, run, data.draw(damages(run)), everywhere=True)


@pytest.mark.slow
@settings(max_examples=1000)
@given(data=st.data())
def test_a_thousand_damages_and_no_wrong_restore(kit: Kit, run: Run, data: st.DataObject) -> None:
    check(kit, run, data.draw(damages(run)))


@pytest.mark.slow
@pytest.mark.parametrize("group", ["commits", "manifests", "parts", "packs"])
def test_every_byte_of_an_object_of_each_kind(kit: Kit, run: Run, group: str) -> None:
    """The newest difference's first object of that kind, byte by byte, of each another bit: each flip is seen."""
    ref = DELTAS[1]
    key = next(key for key in run.owned() if key.startswith(group) and owner_of(key) == ref)
    body, store = run.objects[key], run.copy()
    for place in range(len(body)):
        store.put(key, body[:place] + bytes([body[place] ^ (1 << place % 8)]) + body[place + 1 :])
        assert {problem.key for problem in verify(store, ref)} == {key}


def test_a_commit_of_another_generation_in_its_place_is_not_believed(kit: Kit, run: Run) -> None:
    """It is whole and well-formed, and of the same step; only its generation is another."""
    store = run.copy()
    store.put(commit_key(BASE), run.objects[commit_key(OTHER)])
    with pytest.raises(CheckpointError, match="says that it is step 20 of generation 1"):
        load_manifest(store, BASE)
    assert [problem.key for problem in scan_commits(store).problems] == [commit_key(BASE)]
