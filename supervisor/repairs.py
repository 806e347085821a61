"""The tiers of the ladder: what each goes back to and how the run goes on from there; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef, LrEvent, Tier
from stormsail.supervisor import lr_cuts, reasons
from stormsail.supervisor.candidates import CandidateCheckpoint, Choice, Wish, choose, step_of
from stormsail.supervisor.ladder_state import Episode, LadderState, Restore, with_episode
from stormsail.supervisor.ladder_values import Decision, Fault, LadderPolicy
from stormsail.workers.schedule import lr_factor

FAILURES_ALLOWED = 1
FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class Case:
    """A fault with all that its repair depends on; `episode` stands at the tier that is to be tried."""

    state: LadderState
    fault: Fault
    episode: Episode
    candidates: Sequence[CandidateCheckpoint]
    policy: LadderPolicy
    events: tuple[LrEvent, ...]
    run_precision: str
    generation: int
    opened: bool

    @property
    def incident_step(self) -> int:
        """The last step that the episode knows to be troubled."""
        return max(self.episode.last_step, self.episode.onset)

    @property
    def released_step(self) -> int:
        """Step up to which a learning-rate factor is held: the episode must close, and then some more."""
        return self.incident_step + 1 + self.policy.probation_steps + self.policy.lr_hold_steps


def repair(case: Case) -> Decision:
    """Carry out the tier that the case's episode stands at; at the learning rate's floor tier 2 becomes tier 3."""
    match case.episode.tier:
        case Tier.RESUME:
            return _repair(case, choose(case.candidates, newest(case.state)), _held(case), None)
        case Tier.ROLLBACK:
            return _rollback(case)
        case Tier.FP32_REPLAY:
            return _replay(case)
        case Tier.EXHAUSTED:
            raise InternalError(f"episode {case.episode.number} is used up: there is no repair left to carry out")
        case unknown:
            assert_never(unknown)


def newest(state: LadderState) -> Wish:
    """The newest committed state; inside a numeric episode the newest good one from before its onset."""
    onset = None if state.numeric is None else state.numeric.onset
    return Wish(before=onset, good_only=state.numeric is not None, banned=_banned(state))


def precision_from(state: LadderState, ref: CheckpointRef | None, run_precision: str) -> str:
    """Return the precision of the first step after a restore."""
    return run_precision if fp32_until_from(state, ref) is None else FP32


def fp32_until_from(state: LadderState, ref: CheckpointRef | None) -> int | None:
    """Return the end of the FP32 steps that lie ahead of a state, if any do."""
    return state.fp32_until if state.fp32_until is not None and step_of(ref) < state.fp32_until else None


def _rollback(case: Case) -> Decision:
    choice = choose(case.candidates, _rollback_wish(case))
    event = LrEvent(choice.step, case.policy.rollback_lr_factor, case.generation, case.released_step)
    reduced = lr_cuts.cut(
        _held(case),
        event,
        now_step=case.fault.step,
        floor=case.policy.lr_floor,
        ramp_steps=case.policy.lr_ramp_steps,
    )
    if reduced is None:
        episode = replace(case.episode, tier=Tier.FP32_REPLAY)
        return _replay(replace(case, episode=episode), "the learning rate is at its floor, so tier 2 counts as failed")
    return _repair(case, choice, *reduced)


def _rollback_wish(case: Case) -> Wish:
    wish = newest(case.state)
    tried = [step_of(restore.ref) for restore in case.episode.restores]
    wish = replace(wish, older_than=min(tried, default=None))
    if case.fault.kind.numeric:
        wish = replace(wish, back_steps=case.policy.rollback_min_steps)
    return wish


def _replay(case: Case, why: str = "") -> Decision:
    """Tier 3: FP32 from far enough back until past the last anomalous step."""
    onset = case.episode.onset
    if case.state.numeric is not None:
        onset = min(onset, case.state.numeric.onset)
    wish = Wish(before=onset, good_only=True, back_steps=case.policy.fp32_window_steps, banned=_banned(case.state))
    choice = choose(case.candidates, wish)
    if case.run_precision != FP32:
        until = max(case.state.fp32_until or 0, case.incident_step + 1 + case.policy.fp32_margin_steps)
        case = replace(case, state=replace(case.state, fp32_until=until))
    return _repair(case, choice, _held(case), None, why)


def _held(case: Case) -> tuple[LrEvent, ...]:
    """The events, held longer where a numeric fault came back: the episode will close later than was thought."""
    if case.opened or not case.fault.kind.numeric:
        return case.events
    return lr_cuts.hold_longer(case.events, now_step=case.fault.step, released_step=case.released_step)


def _repair(case: Case, choice: Choice, events: tuple[LrEvent, ...], added: LrEvent | None, why: str = "") -> Decision:
    """Put a decision together."""
    ref = choice.ref
    episode = replace(case.episode, restores=(*case.episode.restores, Restore(case.episode.tier, ref)))
    state = with_episode(case.state, episode, numeric=case.fault.kind.numeric)
    factor = lr_factor(choice.step, events, floor=case.policy.lr_floor, ramp_steps=case.policy.lr_ramp_steps)
    until = fp32_until_from(state, ref)
    what = reasons.what(case.fault.kind, case.fault.step, case.fault.detail)
    cause = reasons.cause(what, episode, opened=case.opened)
    action = reasons.action(episode, choice, factor=factor if added is not None else None, fp32_until=until, why=why)
    return Decision(
        state=replace(state, loaded=ref, completed=-1),
        tier=episode.tier,
        episode=episode.number,
        restore=ref,
        lr_event=added,
        lr_events=events,
        lr_factor=factor,
        precision=precision_from(state, ref, case.run_precision),
        fp32_until=until,
        skip=state.skip,
        reason=f"{cause}: {action}",
        action=action,
    )


def _banned(state: LadderState) -> frozenset[CheckpointRef]:
    return frozenset(ref for ref, count in state.failures if count > FAILURES_ALLOWED)
