"""One history of a run: where it stands, what was played, and what must therefore be true."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from tests.platform.checkpoint.conftest import Kit, State
from tests.platform.checkpoint.flaky_store import FlakyStore

from stormsail.platform.checkpoint.chain import Chain
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.manifest import RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

SHAPES: dict[str, tuple[int, ...]] = {"embed": (9, 4), "norm": (5,)}


@dataclass(frozen=True)
class Held:
    """A save whose ranks have written, and which nobody has committed yet."""

    ref: CheckpointRef
    world_size: int
    parts: list[RankPart]


@dataclass
class History:
    """What was played, and what must therefore be true.

    Attributes:
        saved: Every state that a save was begun with.
        promised: What was committed, and not given up by retention since: it has to be there.
        held: What an old world may still commit, long after it was cut off.
        pinned: What a person wants kept.
        dropped: Folded ones whose differences began to go.
        folds: What had been folded when the playing was over.
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
    promised: set[CheckpointRef] = field(default_factory=set)
    held: list[Held] = field(default_factory=list)
    pinned: set[CheckpointRef] = field(default_factory=set)
    dropped: set[CheckpointRef] = field(default_factory=set)
    folds: frozenset[CheckpointRef] = frozenset()
    story: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = FlakyStore(clock=lambda: self.now_s)
        self.state = self.kit.state(self.seed, SHAPES)
        self.world_size = self.random.randint(1, 3)
        ensure_format(self.store)
        self.kit.generation(self.store, 1)

    def note(self, kind: str, text: str = "") -> None:
        self.tally[kind] += 1
        self.story.append(f"{kind} {text}".strip())

    def happens(self, share: float) -> bool:
        return self.random.random() < share

    def draw_deadly(self, share: float, most: int) -> ObjectStore:
        """The store, or one that dies after some operations."""
        if not self.happens(share):
            return self.store
        limit, takes_effect = self.random.randrange(most), self.happens(0.5)
        self.note("dying", f"after {limit}, last one counts: {takes_effect}")
        return self.kit.crashing(self.store, limit, takes_effect=takes_effect)

    def draw_stall(self, share: float, most: int) -> bool:
        """Whether the store goes away for a while, soon."""
        if not self.happens(share):
            return False
        soon, long, arrives = self.random.randint(1, most), self.random.randint(1, 4), self.happens(0.5)
        self.note("stall", f"at operation {soon} for {long}, puts arrive: {arrives}")
        self.store.go_away(soon, away_for=long, arrives=arrives)
        return True
