"""What each save of one rank builds on, where checkpoints are written as differences.

Which saves are keyframes follows from what all ranks share: how many saves this generation has been asked for. So
ranks agree without asking each other. What only one rank knows (its pack is damaged, its difference is not worth it)
makes that rank write in full; the others' differences stay as good as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stormsail.platform.checkpoint.chain import Chain, ChainPolicy, choose, extend
from stormsail.platform.checkpoint.delta import Worth, is_worth
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.manifest import RankPart
from stormsail.platform.checkpoint.shards import Shard
from stormsail.platform.config.model import RunConfig
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore

Noted = Callable[[int, int, str], None]


def deltas_for(
    config: RunConfig, store: ObjectStore, world_size: int, noted: Noted, *, worth: Worth = is_worth
) -> Deltas | None:
    """What decides about differences in a run; None for a run that writes every save in full."""
    section = config.checkpoint
    if not section.writes_differences:
        return None
    policy = ChainPolicy(section.max_deltas, section.max_delta_ratio)
    return Deltas(store, world_size=world_size, policy=policy, noted=noted, worth=worth)


class Deltas:
    """Holds the words of this rank's last keyframe: 8 bytes for each parameter that it owns.

    Args:
        store: The run's store.
        world_size: Ranks that write a part each.
        policy: When to stop building on a keyframe.
        noted: Told (generation, step, why) when this rank writes in full although a difference was due.
        worth: As for `Keyframe`.
    """

    def __init__(
        self, store: ObjectStore, *, world_size: int, policy: ChainPolicy, noted: Noted, worth: Worth = is_worth
    ) -> None:
        self._store = store
        self._world_size = world_size
        self._policy = policy
        self._noted = noted
        self._worth = worth
        self._chain = Chain()
        self._planned: tuple[CheckpointRef, CheckpointRef] | None = None
        self._keyframe: Keyframe | None = None
        self._ratio = 0.0
        self._told = ""

    def plan(self, ref: CheckpointRef) -> CheckpointRef:
        """The keyframe that a save is to build on; the save itself if it is to be one. From the training thread.

        Must be called on all ranks for the same saves, also for those that are then left out.
        """
        if self._planned is not None and self._planned[0] == ref:
            return self._planned[1]
        choice = choose(self._chain, generation=ref.generation, world_size=self._world_size, policy=self._policy)
        self._chain = extend(self._chain, choice, ref=ref, world_size=self._world_size, stored_bytes=0)
        scheduled = choice.base or ref
        self._planned = ref, scheduled
        return scheduled

    def base_for(self, ref: CheckpointRef, scheduled: CheckpointRef) -> Keyframe | None:
        """What this rank really builds on, or None to write in full. From the thread that writes.

        A save that is itself the keyframe lets the last one go: the plan builds on that one no more, and memory for both
        would be twice as much. Should the save fail, those up to the next keyframe are written in full.

        Raises:
            StorageError: The store failed.
        """
        if scheduled == ref:
            self._keyframe = None
            return None
        problem = self._problem(scheduled)
        if problem:
            if problem != self._told:
                self._noted(ref.generation, ref.step, problem)
            self._told = problem
            return None
        return self._keyframe if self._ratio < self._policy.max_ratio else None

    def _problem(self, scheduled: CheckpointRef) -> str:
        if self._keyframe is None or self._keyframe.ref != scheduled:
            return f"this rank did not write the keyframe of step {scheduled.step}"
        problem = self._keyframe.problem(self._store)
        return f"the keyframe of step {scheduled.step} cannot be built on: {problem}" if problem else ""

    def wrote(self, part: RankPart, shards: Sequence[Shard], scheduled: CheckpointRef) -> None:
        """A part is on the store; the shards of a keyframe are kept. From the thread that writes."""
        if scheduled == part.ref:
            self._keyframe = Keyframe(part, shards, worth=self._worth)
            self._ratio = 0.0
            self._told = ""
        elif part.base is not None and self._keyframe is not None:
            self._ratio = part.stored_bytes / max(1, self._keyframe.stored_bytes)
