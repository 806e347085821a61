"""The recovery ladder: from history, fault, checkpoints and policy to one repair with its reason; pure.

Theory of operation
-------------------
1. A fault belongs to one of two classes. *Infrastructure* (process, hang, the user's own code) and *numeric* (spike,
   non-finite, a resume that does not repeat). Each class has at most one open episode. An infrastructure episode
   may lie inside a numeric one: it climbs by itself, and never moves the numeric one.
2. An infrastructure episode ends with the first step beyond the highest one that was reached before. So a fault that
   meets an open one had no progress since the last repair, and climbs. Any other opens a new episode at tier 1:
   unrelated node deaths never cut the learning rate.
3. A numeric episode ends after `probation_steps` healthy steps past its last anomalous one. A numeric fault that meets
   an open one is a recurrence, and climbs. While it is open, every restore uses a known good state from before its
   onset, whatever the fault.
4. Every fault climbs an open ladder or opens an episode; ladders have three tiers and episodes have budgets. So every
   sequence of faults without enough healthy steps in between ends with `EXHAUSTED`.
5. FP32 belongs to steps, not to decisions: what tier 3 put below `fp32_until` stays FP32 when a later fault makes the
   run compute it again.

`decide` and `observe` read no clock and keep nothing: the caller journals the state that they return, and the same
arguments give the same answer at any time. Where a chosen checkpoint turns out to be unreadable, the caller asks again
with the *same* state and fault and without that candidate: the tier stays, the choice moves back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from stormsail.platform.errors import LadderExhaustedError, UserCodeError
from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor import reasons, repairs
from stormsail.supervisor.candidates import CandidateCheckpoint, choose
from stormsail.supervisor.ladder_state import Episode, LadderState, at_rest, with_episode
from stormsail.supervisor.ladder_values import Decision, Fault, LadderPolicy, Note
from stormsail.workers.schedule import lr_factor

__all__ = [
    "CandidateCheckpoint",
    "Decision",
    "Episode",
    "Fault",
    "LadderPolicy",
    "LadderState",
    "Note",
    "decide",
    "observe",
    "plan_start",
]

HOUR_S = 3600.0
_TIERS = list(Tier)


def decide(
    state: LadderState,
    fault: Fault,
    candidates: Sequence[CandidateCheckpoint],
    policy: LadderPolicy,
    lr_events: Sequence[LrEvent],
    *,
    run_precision: str,
    generation: int,
) -> Decision:
    """Choose the repair for a fault.

    Args:
        state: What earlier calls returned.
        fault: What happened.
        candidates: Commits of the live line that may be loaded.
        policy: The limits.
        lr_events: All learning-rate events of the live line.
        run_precision: Precision that the run is configured for.
        generation: The generation that will begin with this decision.
    """
    if fault.kind is FaultKind.USER_CODE and (why := _hopeless(state, fault, candidates)):
        reason = f"{reasons.what(fault.kind, fault.step, fault.detail)}: {why}"
        return _stop(_remember(state, fault), None, lr_events, run_precision, reason=reason, why=why)
    before, state = state, _remember(state, fault)
    episode = _climb(state, fault, candidates)
    opened = episode.number > before.episodes
    state = with_episode(_charge(state, fault) if opened else state, episode, numeric=fault.kind.numeric)
    why = _used_up(state, fault, episode, policy, opened=opened)
    if why:
        episode = replace(episode, tier=Tier.EXHAUSTED)
        state = with_episode(state, episode, numeric=fault.kind.numeric)
        reason = f"{reasons.what(fault.kind, fault.step, fault.detail)}: {why}; a person must look"
        stop = _stop(state, episode, lr_events, run_precision, reason=reason, why=f"{why}; a person must look")
        return replace(stop, tried=fault.mildest is not Tier.EXHAUSTED)
    if policy.stop_on_anomaly and fault.kind.numeric:
        # The tier counts as not tried: should a person let the run repair itself later, it is the first one.
        why = "ladder.on_anomaly is `stop`; a person must look"
        reason = f"{reasons.what(fault.kind, fault.step, fault.detail)}: {why}"
        stop = _stop(state, episode, lr_events, run_precision, reason=reason, why=why)
        return replace(stop, tier=Tier.EXHAUSTED, tried=False)
    return repairs.repair(
        repairs.Case(
            state=state,
            fault=fault,
            episode=episode,
            candidates=candidates,
            policy=policy,
            events=tuple(lr_events),
            run_precision=run_precision,
            generation=generation,
            opened=opened,
        )
    )


def observe(
    state: LadderState,
    step_completed: int,
    healthy: bool,  # noqa: FBT001 - the call reads as it should with the name of the thing passed
    policy: LadderPolicy,
) -> tuple[LadderState, tuple[Note, ...]]:
    """Take note of a completed step of the live line.

    Args:
        state: The ladder's memory.
        step_completed: The step (0-based).
        healthy: Whether its verdict was "healthy" (no dropped update, no flag).
        policy: The limits.

    Returns:
        The memory afterwards, and what the step settled. Only a note is worth a journal entry: a supervisor that
        starts again counts healthy steps from the last one.
    """
    passed = state.user_error is not None and step_completed >= state.user_error[1]
    state = replace(
        state,
        completed=max(state.completed, step_completed),
        ever_completed=True,
        healthy_steps=state.healthy_steps + healthy,
        user_error=None if passed else state.user_error,
    )
    notes: list[Note] = []
    if state.infra is not None and step_completed > state.infra.last_step:
        notes.append(_closed(state.infra))
        state = replace(state, infra=None)
    if state.numeric is not None and healthy and step_completed > state.numeric.last_step:
        numeric = replace(state.numeric, healthy_past=state.numeric.healthy_past + 1)
        over = numeric.healthy_past >= policy.probation_steps
        notes += [_closed(numeric)] if over else []
        state = replace(state, numeric=None if over else numeric)
    if state.spent and state.healthy_steps >= policy.reset_after_steps:
        notes.append(Note("budgets.reset"))
        state = replace(state, spent=0, recent_s=())
    return at_rest(state), tuple(notes)


def plan_start(
    state: LadderState,
    candidates: Sequence[CandidateCheckpoint],
    policy: LadderPolicy,
    lr_events: Sequence[LrEvent],
    *,
    run_precision: str,
) -> Decision:
    """Say where a run begins, or goes on after a planned interruption; it costs no tier and no budget.

    Args:
        state: The ladder's memory (`LadderState()` for a new run).
        candidates: Commits of the live line.
        policy: The limits.
        lr_events: All learning-rate events of the live line.
        run_precision: Precision that the run is configured for.
    """
    choice = choose(candidates, repairs.newest(state))
    reason = f"start from {reasons.place(choice)}"
    if state.numeric is not None:
        reason += f"; numeric episode {state.numeric.number} is still open, so a good state from before its onset"
    return Decision(
        state=replace(state, completed=-1, loaded=choice.ref),
        tier=None,
        episode=None,
        restore=choice.ref,
        lr_event=None,
        lr_events=tuple(lr_events),
        lr_factor=lr_factor(choice.step, lr_events, floor=policy.lr_floor, ramp_steps=policy.lr_ramp_steps),
        precision=repairs.precision_from(state, choice.ref, run_precision),
        fp32_until=repairs.fp32_until_from(state, choice.ref),
        skip=state.skip,
        reason=reason,
        action=reason,
    )


def _hopeless(state: LadderState, fault: Fault, candidates: Sequence[CandidateCheckpoint]) -> str:
    """Say why an error of the user's code is not worth a repair, or ""."""
    if not state.ever_completed and not candidates:
        return "no step of the run was ever done, so no repair can help"
    if state.user_error == (fault.signature, fault.step):
        return "the same error at the same step twice, so no repair can help"
    return ""


def _remember(state: LadderState, fault: Fault) -> LadderState:
    """Put the fault into the history, whatever will be decided about it."""
    return replace(
        state,
        healthy_steps=0,
        user_error=(fault.signature, fault.step) if fault.kind is FaultKind.USER_CODE else state.user_error,
        skip=tuple(sorted({*state.skip, *fault.suspects})),
        failures=_blamed(state),
    )


def _blamed(state: LadderState) -> tuple[tuple[CheckpointRef, int], ...]:
    """Count the fault against the loaded checkpoint if the run did not get beyond the old trouble since the load."""
    troubled = any(e is not None and state.completed <= e.last_step for e in (state.numeric, state.infra))
    if state.loaded is None or not troubled:
        return state.failures
    counts = Counter(dict(state.failures))
    counts[state.loaded] += 1
    return tuple(sorted(counts.items(), key=lambda item: (item[0].step, item[0].generation)))


def _climb(state: LadderState, fault: Fault, candidates: Sequence[CandidateCheckpoint]) -> Episode:
    """Return the episode that the fault belongs to, at the tier that is to be tried now."""
    numeric = fault.kind.numeric
    onset = fault.onset if numeric else _here(state, fault, candidates)
    last_step = fault.step if numeric else max(fault.step, state.completed)
    known = state.numeric if numeric else state.infra
    if known is None:
        return Episode(
            number=state.episodes + 1,
            tier=fault.mildest,
            opened_step=fault.step,
            opened_time_s=fault.time_s,
            onset=onset,
            last_step=last_step,
        )
    return replace(
        known,
        tier=_milder_first(known.tier, fault.mildest),
        onset=min(known.onset, onset),
        last_step=max(known.last_step, last_step),
        healthy_past=0,
    )


def _here(state: LadderState, fault: Fault, candidates: Sequence[CandidateCheckpoint]) -> int:
    """Where the run stands: a process that dies while it starts knows no step of its own."""
    return max(fault.step, state.completed, max((c.ref.step for c in candidates), default=0))


def _milder_first(tried: Tier, mildest: Tier) -> Tier:
    return _TIERS[min(max(tried.number, mildest.number - 1), len(_TIERS) - 1)]


def _charge(state: LadderState, fault: Fault) -> LadderState:
    """Book a new episode on both budgets."""
    recent = tuple(time_s for time_s in state.recent_s if fault.time_s - time_s < HOUR_S)
    return replace(state, episodes=state.episodes + 1, spent=state.spent + 1, recent_s=(*recent, fault.time_s))


def _used_up(state: LadderState, fault: Fault, episode: Episode, policy: LadderPolicy, *, opened: bool) -> str:
    """Say why nothing more may be tried, or ""."""
    if episode.tier is Tier.EXHAUSTED:
        if fault.mildest is Tier.EXHAUSTED:
            return "the diagnosis leaves nothing to try"
        return f"every tier was tried in episode {episode.number}"
    if opened and len(state.recent_s) > policy.episodes_per_hour:
        return f"{len(state.recent_s)} episodes within an hour (ladder.episodes_per_hour is {policy.episodes_per_hour})"
    if opened and state.spent > policy.episodes_total:
        return f"{state.spent} episodes in all (ladder.episodes_total is {policy.episodes_total})"
    return ""


def _stop(
    state: LadderState,
    episode: Episode | None,
    lr_events: Sequence[LrEvent],
    run_precision: str,
    *,
    reason: str,
    why: str,
) -> Decision:
    """End the run: with an episode the ladder is used up, without one the user's code is at fault."""
    return Decision(
        state=state,
        tier=None if episode is None else episode.tier,
        episode=None if episode is None else episode.number,
        restore=None,
        lr_event=None,
        lr_events=tuple(lr_events),
        lr_factor=1.0,
        precision=run_precision,
        fp32_until=None,
        skip=state.skip,
        reason=reason,
        action=f"stop: {why}",
        stop_exit_code=UserCodeError.exit_code if episode is None else LadderExhaustedError.exit_code,
    )


def _closed(episode: Episode) -> Note:
    return Note("episode.closed", episode.number, episode.tier)
