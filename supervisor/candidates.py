"""Which checkpoint a repair starts from, and when a checkpoint is known to be good; pure.

A checkpoint's `step` is the next step to run, so a checkpoint lies before an onset if its step is at most the
onset. The initial state (step 0, made again from the seed) is always there and is the oldest candidate; it is
written as None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from stormsail.platform.messages import CheckpointRef

# The initial state stands in for an older checkpoint only where it is at most this many times farther back than
# was asked for: no repair may cost a long run all that it has done while a younger checkpoint is still untried.
INITIAL_REACH = 10


@dataclass(frozen=True, slots=True)
class CandidateCheckpoint:
    """A committed checkpoint of the live line.

    Attributes:
        ref: Its name.
        good: Whether it is known good.
    """

    ref: CheckpointRef
    good: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """What a repair asks for.

    Attributes:
        before: The state must lie at or before this step (None: anywhere).
        good_only: Whether only a state that is known good will do.
        back_steps: The state should lie at least this many steps before `before`; where none does, the oldest will do.
        older_than: The state should be older than the one at this step, which has been tried (None: any).
        banned: Checkpoints that failed too often.
    """

    before: int | None
    good_only: bool
    back_steps: int = 0
    older_than: int | None = None
    banned: Collection[CheckpointRef] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer to a wish.

    Attributes:
        ref: The checkpoint, or None for the initial state.
        note: How it falls short of the wish, or what was passed over; "" if there is nothing to say.
    """

    ref: CheckpointRef | None
    note: str = ""

    @property
    def step(self) -> int:
        """The next step to run after loading it."""
        return step_of(self.ref)


def step_of(ref: CheckpointRef | None) -> int:
    """Return the next step to run from a checkpoint, or from the initial state (None)."""
    return ref.step if ref is not None else 0


def choose(candidates: Iterable[CandidateCheckpoint], wish: Wish) -> Choice:
    """Return the newest state that the wish allows, or the nearest to it that there is.

    Args:
        candidates: Commits of the live line, in any order.
        wish: What is asked for.
    """
    able = [c.ref for c in candidates if _able(c, wish)]
    pool = [ref for ref in able if ref not in wish.banned]
    passed_over = _passed_over(able, wish)
    newest_allowed = None if wish.before is None else wish.before - wish.back_steps
    fitting = [ref for ref in pool if newest_allowed is None or ref.step <= newest_allowed]
    if fitting:
        return Choice(max(fitting, key=_age), passed_over)
    if pool and not _initial_is_near(wish):
        oldest = min(pool, key=_age)
        return Choice(oldest, _join(passed_over, f"nothing lies {wish.back_steps} steps back, this is the oldest"))
    return Choice(None, _join(passed_over, _why_initial(wish)))


def promote(
    candidates: Iterable[CandidateCheckpoint],
    *,
    healthy_step: int,
    episode_open: bool,
    good_after_steps: int,
    last_unhealthy: int = -1,
) -> tuple[CheckpointRef, ...]:
    """Return the checkpoints that become known good now, oldest first.

    Args:
        candidates: Commits of the live line.
        healthy_step: The last step that was completed and healthy (-1: none), on the live line.
        episode_open: Whether a numeric episode is open; inside one nothing is promoted.
        good_after_steps: Healthy steps in a row, beyond a checkpoint, that it takes.
        last_unhealthy: The last step on the live line that was dropped or flagged (-1: none).
    """
    if episode_open:
        return ()
    healthy_since = last_unhealthy + 1
    ripe = [
        c.ref
        for c in candidates
        if not c.good and max(c.ref.step, healthy_since) + good_after_steps <= healthy_step + 1
    ]
    return tuple(sorted(ripe, key=_age))


def _able(candidate: CandidateCheckpoint, wish: Wish) -> bool:
    step = candidate.ref.step
    if wish.good_only and not candidate.good:
        return False
    if wish.before is not None and step > wish.before:
        return False
    return wish.older_than is None or step < wish.older_than


def _age(ref: CheckpointRef) -> tuple[int, int]:
    return ref.step, ref.generation


def _passed_over(able: Sequence[CheckpointRef], wish: Wish) -> str:
    names = [f"step {ref.step} (generation {ref.generation})" for ref in able if ref in wish.banned]
    return f"passing over {', '.join(names)}, which failed twice after loading" if names else ""


def _initial_is_near(wish: Wish) -> bool:
    return wish.before is None or wish.before <= INITIAL_REACH * wish.back_steps


def _why_initial(wish: Wish) -> str:
    if wish.older_than == 0:
        return "nothing is older than the initial state"
    if wish.before is not None and wish.before < wish.back_steps:
        return f"the run is younger than {wish.back_steps} steps"
    if wish.older_than is not None:
        return f"no older {_quality(wish)}checkpoint is left"
    return f"there is no {_quality(wish)}checkpoint that old" if wish.before is not None else "there is no checkpoint"


def _quality(wish: Wish) -> str:
    return "good " if wish.good_only else ""


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
