"""When a save is a keyframe and when a difference to the last one; pure.

A difference pays only while it is smaller, and every one needs its keyframe to be read. So chains have one link, few
differences lie on one keyframe, and anything that casts doubt on it ends them. The choice follows from facts that all
ranks share; what only one rank knows (its own pack is gone) makes that rank write in full, which needs no agreement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stormsail.platform.messages import CheckpointRef

MAX_DELTAS = 10
MAX_RATIO = 0.97


@dataclass(frozen=True, slots=True)
class ChainPolicy:
    """When to stop building on a keyframe.

    Attributes:
        max_deltas: At most this many differences on one keyframe.
        max_ratio: A difference that reached this share of its keyframe's size is the last one on it.
    """

    max_deltas: int = MAX_DELTAS
    max_ratio: float = MAX_RATIO


@dataclass(frozen=True, slots=True)
class Chain:
    """The keyframe that the next save could build on, and what lies on it already.

    Attributes:
        keyframe: Its name, or None where there is none.
        world_size: Ranks that wrote it.
        keyframe_bytes: Its size on the store.
        deltas: Saves on it so far, whether or not they were committed.
        last_bytes: Size of the last of them.
    """

    keyframe: CheckpointRef | None = None
    world_size: int = 0
    keyframe_bytes: int = 0
    deltas: int = 0
    last_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Size of the last difference over that of its keyframe; 0 before the first."""
        return self.last_bytes / self.keyframe_bytes if self.keyframe_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ChainChoice:
    """What the next save is.

    Attributes:
        base: The keyframe to build on, or None: the save is a keyframe.
        reason: Why it is a keyframe; "" for a difference.
        warning: Whether the reason is trouble that somebody should hear of, and not the ordinary course.
    """

    base: CheckpointRef | None
    reason: str = ""
    warning: bool = False


def choose(
    chain: Chain, *, generation: int, world_size: int, problem: str = "", policy: ChainPolicy | None = None
) -> ChainChoice:
    """Decide what the next save is.

    Args:
        chain: What there is.
        generation: Of the save; another one than the keyframe's may not hold its words any more.
        world_size: Ranks that save now.
        problem: Why the keyframe cannot be relied on ("" if it can).
        policy: The limits.
    """
    base = chain.keyframe
    if base is None:
        return ChainChoice(None, "it is the first")
    if world_size != chain.world_size:
        return ChainChoice(None, f"{world_size} workers save now, {chain.world_size} wrote the last keyframe")
    if generation != base.generation:
        return ChainChoice(None, f"generation {generation} begins")
    if problem:
        return ChainChoice(None, f"the keyframe of step {base.step} cannot be built on: {problem}", warning=True)
    worn = _worn(chain, policy or ChainPolicy(), base)
    return ChainChoice(None, worn) if worn else ChainChoice(base)


def _worn(chain: Chain, limits: ChainPolicy, base: CheckpointRef) -> str:
    if chain.deltas >= limits.max_deltas:
        return f"{chain.deltas} differences lie on the keyframe of step {base.step}"
    if chain.ratio >= limits.max_ratio:
        return f"the last difference was {chain.ratio:.0%} of its keyframe"
    return ""


def extend(chain: Chain, choice: ChainChoice, *, ref: CheckpointRef, world_size: int, stored_bytes: int) -> Chain:
    """The chain after a save of that choice.

    Args:
        chain: Before it.
        choice: What it was.
        ref: Its name.
        world_size: Ranks that wrote it.
        stored_bytes: Its size on the store.
    """
    if choice.base is None:
        return Chain(ref, world_size, stored_bytes)
    return replace(chain, deltas=chain.deltas + 1, last_bytes=stored_bytes)
