"""A run that is nothing but its ladder: tests meet it with faults and look at what is decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier
from stormsail.supervisor.ladder import (
    CandidateCheckpoint,
    Decision,
    Fault,
    LadderPolicy,
    LadderState,
    Note,
    decide,
    observe,
)

POLICY = LadderPolicy(
    probation_steps=50,
    episodes_per_hour=6,
    episodes_total=50,
    reset_after_steps=1000,
    rollback_min_steps=10,
    rollback_lr_factor=0.8,
    fp32_window_steps=100,
    fp32_margin_steps=10,
    lr_floor=0.5,
    lr_hold_steps=200,
    lr_ramp_steps=1000,
)


Question = tuple[LadderState, Fault, tuple[CandidateCheckpoint, ...], tuple[LrEvent, ...], int]


@dataclass
class Run:
    """A run that consists of nothing but its ladder, its checkpoints and its events."""

    policy: LadderPolicy = POLICY
    precision: str = "bf16"
    state: LadderState = field(default_factory=LadderState)
    candidates: tuple[CandidateCheckpoint, ...] = ()
    events: tuple[LrEvent, ...] = ()
    generation: int = 1
    clock_s: float = 1000.0
    notes: list[Note] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)

    def steps(self, first: int, last: int, *, healthy: bool = True) -> None:
        """Complete the steps first to last, both included."""
        for step in range(first, last + 1):
            self.state, notes = observe(self.state, step, healthy, self.policy)
            self.notes += notes

    def saved(self, *steps: int, good: bool = True) -> None:
        """Commit checkpoints."""
        self.candidates += tuple(CandidateCheckpoint(CheckpointRef(self.generation, step), good) for step in steps)

    def fault(
        self,
        kind: FaultKind,
        step: int,
        onset: int | None = None,
        *,
        signature: str = "",
        mildest: Tier = Tier.RESUME,
        suspects: tuple[tuple[int, int], ...] = (),
    ) -> Decision:
        """Meet a fault, take the decision, and drop the checkpoints that it supersedes."""
        onset = step if onset is None else onset
        fault = Fault(kind, step, onset, self.clock_s, signature=signature, mildest=mildest, suspects=suspects)
        self.asked.append((self.state, fault, self.candidates, self.events, self.generation + 1))
        decision = decide(
            self.state,
            fault,
            self.candidates,
            self.policy,
            self.events,
            run_precision=self.precision,
            generation=self.generation + 1,
        )
        self.clock_s += 60.0
        self.state = decision.state
        self.events = decision.lr_events
        if decision.stop_exit_code is None:
            self.generation += 1
            fork = decision.restore.step if decision.restore else 0
            self.candidates = tuple(c for c in self.candidates if c.ref.step <= fork)
        self.decisions.append(decision)
        return decision


def running(policy: LadderPolicy = POLICY) -> Run:
    """A run at step 57 with good checkpoints up to 30 and two younger ones."""
    run = Run(policy=policy)
    run.steps(0, 56)
    run.saved(10, 20, 30)
    run.saved(40, 50, good=False)
    return run
