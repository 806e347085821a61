"""The one line that says why the ladder decided as it did; pure."""

from __future__ import annotations

from stormsail.platform.messages import FaultKind, Tier
from stormsail.supervisor.candidates import Choice
from stormsail.supervisor.ladder_state import Episode

_KINDS = {
    FaultKind.PROCESS: "a process was lost",
    FaultKind.HANG: "a process hangs",
    FaultKind.USER_CODE: "the user's code raised",
    FaultKind.SPIKE: "loss spike",
    FaultKind.NONFINITE: "non-finite numbers",
    FaultKind.RESUME_FAULT: "the resumed run does not repeat its losses",
    FaultKind.DIVERGENCE: "the loss climbs",
    FaultKind.RANK_OUTLIER: "one rank's numbers leave the others'",
    FaultKind.DESYNC: "ranks disagree about the step",
}

_ACTIONS = {
    Tier.RESUME: "resume from",
    Tier.ROLLBACK: "rollback to",
    Tier.FP32_REPLAY: "FP32 replay from",
}


def what(kind: FaultKind, step: int, detail: str) -> str:
    """Name a fault: "loss spike at step 57 (z = 14.2)"."""
    where = f"at step {step}" if step >= 0 else "before its first step"
    return f"{_KINDS[kind]} {where}" + (f" ({detail})" if detail else "")


def place(choice: Choice) -> str:
    """Name a state: "step 50 (generation 3)"."""
    named = (
        "the initial state" if choice.ref is None else f"step {choice.ref.step} (generation {choice.ref.generation})"
    )
    return f"{named} [{choice.note}]" if choice.note else named


def cause(what: str, episode: Episode, *, opened: bool) -> str:
    """Say what a fault means to the ladder: "loss spike at step 57 (z = 14.2) opens episode 2"."""
    return f"{what} {'opens' if opened else 'again inside'} episode {episode.number}"


def action(episode: Episode, choice: Choice, *, factor: float | None, fp32_until: int | None, why: str) -> str:
    """Say what is done: which tier, where the run goes back to and how it goes on."""
    parts = [
        f"tier {episode.tier.number}, {_ACTIONS[episode.tier]} {place(choice)}",
        f"learning rate at {factor:.4g} of the schedule" if factor is not None else "",
        f"FP32 up to step {fp32_until}" if fp32_until is not None else "",
        why,
    ]
    return "; ".join(part for part in parts if part)
