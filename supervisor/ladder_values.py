"""What goes into the ladder and what comes out: policy, fault, decision; pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from stormsail.platform.config.model import RunConfig
from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.ladder_state import LadderState


@dataclass(frozen=True, slots=True)
class LadderPolicy:
    """The numbers that the ladder goes by; each is the configuration key of the same words."""

    probation_steps: int
    episodes_per_hour: int
    episodes_total: int
    reset_after_steps: int
    rollback_min_steps: int
    rollback_lr_factor: float
    fp32_window_steps: int
    fp32_margin_steps: int
    lr_floor: float
    lr_hold_steps: int
    lr_ramp_steps: int
    stop_on_anomaly: bool = False

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        """Take the policy out of a run's configuration."""
        return cls(
            probation_steps=config.ladder.probation_steps,
            episodes_per_hour=config.ladder.episodes_per_hour,
            episodes_total=config.ladder.episodes_total,
            reset_after_steps=config.ladder.reset_after_steps,
            rollback_min_steps=config.rollback.min_steps,
            rollback_lr_factor=config.rollback.lr_factor,
            fp32_window_steps=config.fp32.window_steps,
            fp32_margin_steps=config.fp32.margin_steps,
            lr_floor=config.lr.floor,
            lr_hold_steps=config.lr.hold_steps,
            lr_ramp_steps=config.lr.ramp_steps,
            stop_on_anomaly=config.ladder.on_anomaly == "stop",
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened, as the ladder needs to know it.

    Attributes:
        kind: Its kind, which gives its class.
        step: Step it happened at; -1 before the first step of a process.
        onset: First anomalous step of a numeric fault; ignored for the others.
        time_s: When it was noticed, in seconds since the epoch.
        signature: What makes two errors of user code the same (type, message and place, without addresses).
        detail: One line for the reason; "" if there is none.
        mildest: The mildest tier that could cure it, from a confident diagnosis.
        suspects: Sample ranges [start, stop) that a diagnosis suspects; they are left out from now on.
    """

    kind: FaultKind
    step: int
    onset: int
    time_s: float
    signature: str = ""
    detail: str = ""
    mildest: Tier = Tier.RESUME
    suspects: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one fault.

    Attributes:
        state: The ladder's memory afterwards; to be journalled before anything is done.
        tier: The tier that was chosen; None for a plain start and for an error of the user's code.
        episode: Number of the episode that it belongs to (None like `tier`).
        restore: The checkpoint to load; None is the initial state (step 0). Without meaning if the run stops.
        lr_event: The learning-rate event that this decision adds, if any.
        lr_events: All events of the live line from now on.
        lr_factor: The factor in force at the first step after the restore.
        precision: Precision of the engine from the restore on.
        fp32_until: First step that is again computed in the run's precision, or None.
        skip: All sample ranges [start, stop) to leave out.
        reason: What happened and what is done about it, in one line.
        action: Its second half: what is done.
        stop_exit_code: Set if the run stops instead: 4 a person must look, 6 the user's code failed.
        tried: Whether a run that stops with 4 has used up its repairs; otherwise none was to be tried.
    """

    state: LadderState
    tier: Tier | None
    episode: int | None
    restore: CheckpointRef | None
    lr_event: LrEvent | None
    lr_events: tuple[LrEvent, ...]
    lr_factor: float
    precision: str
    fp32_until: int | None
    skip: tuple[tuple[int, int], ...]
    reason: str
    action: str
    stop_exit_code: int | None = None
    tried: bool = True

    def to_json(self) -> dict[str, object]:
        """Return the fields of the journal's `ladder.decided` event, as plain JSON values."""
        ref = self.restore
        return {
            "tier": None if self.tier is None else str(self.tier),
            "episode": self.episode,
            "restore": None if ref is None else {"generation": ref.generation, "step": ref.step},
            "lr_factor": self.lr_factor,
            "lr_events": [
                {
                    "step": event.step,
                    "factor": event.factor,
                    "generation": event.generation,
                    "released_step": event.released_step,
                }
                for event in self.lr_events
            ],
            "precision": self.precision,
            "fp32_until": self.fp32_until,
            "skip": [list(pair) for pair in self.skip],
            "reason": self.reason,
            "action": self.action,
            "stop_exit_code": self.stop_exit_code,
            "state": self.state.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a healthy step settled: `episode.closed` (with its number and tier) or `budgets.reset`."""

    kind: str
    episode: int | None = None
    tier: Tier | None = None
