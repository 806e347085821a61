"""Long form of the fault tests: whole histories of a run, each with faults drawn from a seed, judged by an oracle.

    python -m tests.platform.checkpoint.long_form --from 0 --cases 100000 --jobs 2

A case is a pure function of its seed. It plays a history (saves as keyframes and differences, writers and collectors
that die at any operation, new generations on other world sizes, rollbacks, retention, sweeps) with the real writer
and reader on a store in memory, then harms objects (bits, cuts, losses, swaps, stale ones of another generation), and
demands: whatever restores is bit for bit the state that was saved; whatever was not harmed restores; whatever does not
restore was harmed; a store that only fails for a while is never taken for damage.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.platform.checkpoint.conftest import Kit, State

from stormsail.platform.checkpoint.chain import Chain, ChainPolicy, choose, extend
from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.commits import Problem, scan_commits
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.keys import owner_of
from stormsail.platform.checkpoint.lines import list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.manifest import Commit
from stormsail.platform.checkpoint.reader import verify
from stormsail.platform.checkpoint.retention import retain
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.console import emit
from stormsail.platform.errors import CheckpointError, StorageError, StorageUnavailableError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import ObjectInfo, ObjectStore

SHAPES: dict[str, tuple[int, ...]] = {"embed": (9, 4), "norm": (5,)}
POLICY = ChainPolicy(max_deltas=3)
BLOCK = 50


class FlakyStore(MemoryStore):
    """A store in memory that fails once, at a chosen read; then it works again."""

    fail_at = -1

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._count(key)
        return super().get(key, start=start, end=end)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self._count(prefix)
        return super().list(prefix, start_after=start_after)

    def _count(self, key: str) -> None:
        self.fail_at -= 1
        if self.fail_at == 0:
            raise StorageUnavailableError("503 SlowDown", where=key)


@dataclass
class History:
    """What was played, and what must therefore be true.

    Attributes:
        saved: Every state that a save was begun with.
        story: One line for each thing that happened, to be printed when a case fails.
        tally: How often each kind of thing happened.
    """

    seed: int
    kit: Kit
    random: random.Random
    now_s: float = 1000.0
    generation: int = 1
    world_size: int = 1
    step: int = 0
    chain: Chain = field(default_factory=Chain)
    keyframes: list[Keyframe] = field(default_factory=list)
    saved: dict[CheckpointRef, State] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = FlakyStore(clock=lambda: self.now_s)
        self.state = self.kit.state(self.seed, SHAPES)
        self.world_size = self.random.randint(1, 3)
        self.kit.generation(self.store, 1)

    def note(self, kind: str, text: str = "") -> None:
        self.tally[kind] += 1
        self.story.append(f"{kind} {text}".strip())

    def draw_deadly(self, share: float, most: int) -> ObjectStore:
        """The store, or one that dies after some operations."""
        if self.random.random() >= share:
            return self.store
        limit, takes_effect = self.random.randrange(most), self.random.random() < 0.5
        self.note("dying", f"after {limit}, last one counts: {takes_effect}")
        return self.kit.crashing(self.store, limit, takes_effect=takes_effect)


def save(history: History) -> None:
    """Ten steps and a save; a writer that dies makes the next generation begin."""
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
    try:
        _write(history, history.draw_deadly(0.25, 14), ref, bases=bool(choice.base))
    except StorageUnavailableError:
        begin_again(history)
        return
    stored = sum(keyframe.stored_bytes for keyframe in history.keyframes) if choice.base is None else 1
    history.chain = extend(history.chain, choice, ref=ref, world_size=history.world_size, stored_bytes=max(stored, 1))


def _write(history: History, store: ObjectStore, ref: CheckpointRef, *, bases: bool) -> None:
    kit, world_size = history.kit, history.world_size
    parts = kit.parts(
        store,
        history.state,
        ref,
        world_size,
        shapes=SHAPES,
        pack_bytes=history.random.choice((200, 10_000)),
        bases=history.keyframes if bases else (),
    )
    commit(store, parts, kit.meta(ref.step, world_size), parent=None, time_s=history.now_s)
    if not bases:
        history.keyframes = [
            Keyframe(part, kit.shards(history.state, kit.specs(part.rank, world_size, SHAPES))) for part in parts
        ]


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
    """Retention, by a collector that may die."""
    commits = scan_commits(history.store).commits
    live = live_refs(list_generations(history.store), commits)
    good = [ref for ref in newest_first(live) if history.random.random() < 0.8]
    plan = retain(
        commits,
        good=good,
        live=live,
        head_step=history.step,
        keep_last=history.random.randint(1, 2),
        ladder_min_steps=20,
        bases={item.ref: item.base for item in commits if item.base is not None},
    )
    history.note("pruned", f"{len(plan.delete)} of {len(commits)}")
    try:
        collect(history.draw_deadly(0.4, 10), plan)
    except StorageUnavailableError:
        history.note("collector died")
    left = {item.ref for item in scan_commits(history.store).commits}
    assert set(plan.keep) <= left, "what is kept was deleted"


def sweep(history: History) -> None:
    """Litter of the dead, long after."""
    history.now_s += 1000.0
    removed = collect_litter(history.store, now_s=history.now_s, grace_s=100.0)
    history.note("swept", f"{len(removed.deleted)} objects")


def play(history: History) -> None:
    """Some of everything."""
    save(history)
    for _ in range(history.random.randint(1, 5)):
        kind = history.random.choices(("save", "again", "back", "prune", "sweep"), (6, 1, 1, 1, 1))[0]
        if kind == "save":
            save(history)
        elif kind == "prune":
            prune(history)
        elif kind == "sweep":
            sweep(history)
        else:
            begin_again(history, back=int(kind == "back"))


def harm(history: History) -> set[str]:
    """Harm up to two objects of checkpoints; gives the keys of those that are not as they were."""
    keys = sorted(info.key for info in history.store.list() if owner_of(info.key) is not None)
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
    scan = scan_commits(history.store)
    unreadable = {problem.key for problem in scan.problems}
    assert unreadable <= harmed, "a commit that nobody harmed cannot be read"
    for item in scan.commits:
        _judge_one(history, item, harmed)
    _judge_choice(history, scan.commits, harmed)
    _judge_flaky(history, scan.commits)


def _judge_one(history: History, item: Commit, harmed: set[str]) -> None:
    concerned = {key for key in harmed if owner_of(key) in (item.ref, item.base)}
    problems = verify(history.store, item)
    assert {problem.key for problem in problems} <= concerned, f"{item.ref}: {problems} name what nobody harmed"
    own = {key for key in concerned if owner_of(key) == item.ref}
    assert bool(problems) or not own, f"{item.ref}: harm at {own} went unseen"
    readers = history.random.randint(1, 3)
    restored = _restored(history, item.ref, readers)
    if isinstance(restored, CheckpointError):
        assert concerned, f"{item.ref} does not restore, and nobody harmed it: {restored}"
        assert set(restored.objects) <= concerned, f"{item.ref}: {restored.objects} are named, {concerned} were harmed"
        history.note("detected", f"{item.ref}: {restored.what}")
        return
    assert history.kit.same(restored, history.saved[item.ref]), f"WRONG RESTORE of {item.ref}"
    history.note("restored", f"{item.ref} on {readers}")


def _restored(history: History, ref: CheckpointRef, readers: int) -> State | CheckpointError:
    try:
        return history.kit.restore(history.store, ref, readers, shapes=SHAPES)
    except CheckpointError as error:
        return error


def _judge_choice(history: History, commits: tuple[Commit, ...], harmed: set[str]) -> None:
    """The newest of the live line that nobody harmed is always there to go on from."""
    bases = {item.ref: item.base for item in commits}
    hurt = {owner_of(key) for key in harmed}
    for ref in newest_first(live_refs(list_generations(history.store), commits)):
        if ref not in hurt and bases[ref] not in hurt:
            restored = history.kit.restore(history.store, ref, 1, shapes=SHAPES)
            assert history.kit.same(restored, history.saved[ref])
            return


def _judge_flaky(history: History, commits: tuple[Commit, ...]) -> None:
    """A read that fails is an error of the store, not of the checkpoint, and after it everything is as before."""
    if not commits:
        return
    item = history.random.choice(commits)
    before: list[Problem] = verify(history.store, item)
    history.store.fail_at = history.random.randint(1, 6)
    try:
        found = verify(history.store, item)
    except StorageError:
        history.note("store failed")
    else:
        assert found == before
    history.store.fail_at = -1
    assert verify(history.store, item) == before


def run_case(seed: int) -> Counter[str]:
    """Play one case; gives what happened.

    Raises:
        AssertionError: A promise was broken; the message tells the whole story.
    """
    history = History(seed, Kit(), random.Random(seed))
    try:
        play(history)
        judge(history, harm(history))
    except Exception as error:
        told = "\n  ".join(history.story)
        raise AssertionError(f"seed {seed}: {error!r}\n  {told}") from error
    return history.tally


def run_block(seeds: range) -> Counter[str]:
    """Many cases, one after another."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        tally += run_case(seed)
        tally["cases"] += 1
    return tally


def main() -> None:
    """Run the cases that the command line names, and say how fast that was."""
    parser = argparse.ArgumentParser(description="Fault histories from seeds.")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed")
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    begun = time.perf_counter()
    tally: Counter[str] = Counter()
    last = asked.first + asked.cases
    blocks = [range(start, min(start + BLOCK, last)) for start in range(asked.first, last, BLOCK)]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for found in pool.map(run_block, blocks):
            tally += found
    took_s = time.perf_counter() - begun
    for kind, count in sorted(tally.items()):
        emit(f"{count:>9}  {kind}")
    emit(f"seeds {asked.first} to {last - 1}: 0 promises broken, {took_s:.1f} s, {asked.cases / took_s:.1f} cases/s")


if __name__ == "__main__":
    main()
