"""A tape on which a test plays a run: it writes events and rows as the supervisor and rank 0 would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stormsail.platform.messages import CheckpointRef, FaultKind, LrEvent, Tier

START_S = 1_000_000.0


@dataclass(frozen=True)
class TapedEvent:
    """An event as the journal gives it back."""

    number: int
    time_s: float
    kind: str
    generation: int
    step: int | None
    attempt: int | None
    data: Mapping[str, object]


@dataclass
class Tape:
    """Plays and records; the clock only moves when something takes time."""

    clock_s: float = START_S
    generation: int = 0
    events: list[TapedEvent] = field(default_factory=list)
    rows: list[dict[str, object]] = field(default_factory=list)

    def note(self, kind: str, /, step: int | None = None, after_s: float = 0.0, **data: object) -> None:
        """Write an event, some seconds after the last thing."""
        self.clock_s += after_s
        self.events.append(TapedEvent(len(self.events) + 1, self.clock_s, kind, self.generation, step, 1, data))

    def born(self, parent: CheckpointRef | None = None, fork_step: int | None = None) -> None:
        """Begin the next generation."""
        self.generation += 1
        fork = fork_step if fork_step is not None else (parent.step if parent else 0)
        self.note(
            "generation.created",
            step=fork,
            generation=self.generation,
            parent=parent.generation if parent else None,
            fork_step=fork,
            reason="why",
        )

    def steps(self, first: int, last: int, step_s: float = 1.0) -> None:
        """Do the steps first to last, both included."""
        for step in range(first, last + 1):
            self.clock_s += step_s
            self.rows.append(
                {
                    "generation": self.generation,
                    "step": step,
                    "applied": step + 1,
                    "loss": 5.0 - 0.01 * step,
                    "tokens": 100,
                    "step_s": step_s,
                    "time_s": self.clock_s,
                }
            )

    def start(self) -> None:
        """Start a run: 2 s until its first step can begin."""
        self.note("run.started", config_digest="c", owner="host:1")
        self.note("attempt.started", attempt=1, workers=2)
        self.born()
        self.clock_s += 2.0

    def fault(
        self, kind: FaultKind, step: int, onset: int | None = None, fault_time_s: float | None = None, **data: object
    ) -> None:
        """Notice a fault, 3 s after the last thing."""
        onset = step if onset is None else onset
        more = {} if fault_time_s is None else {"fault_time_s": fault_time_s}
        self.note("fault.detected", step=step, after_s=3.0, kind=str(kind), rank=1, onset=onset, **more, **data)

    def decided(
        self,
        tier: Tier | None,
        restore: CheckpointRef | None,
        episode: int | None = 1,
        events: tuple[LrEvent, ...] = (),
    ) -> None:
        """Decide, half a second later."""
        self.note(
            "ladder.decided",
            after_s=0.5,
            tier=None if tier is None else str(tier),
            episode=episode,
            restore=None if restore is None else {"generation": restore.generation, "step": restore.step},
            lr_factor=0.8 if events else 1.0,
            lr_events=[
                {"step": e.step, "factor": e.factor, "generation": e.generation, "released_step": e.released_step}
                for e in events
            ],
            precision="fp32" if tier is Tier.FP32_REPLAY else "bf16",
            fp32_until=None,
            reason=f"because of episode {episode}",
        )

    def restored(
        self, ref: CheckpointRef | None, restart_s: float = 7.0, *, places: dict[str, int] | None = None
    ) -> None:
        """Begin a generation from a state: restart, then 1 s of loading."""
        self.born(ref)
        self.note(
            "state.restored",
            after_s=restart_s + 1.0,
            ref_generation=ref.generation if ref else None,
            ref_step=ref.step if ref else 0,
            took_s=1.0,
            places=places or {},
        )

    def again(self, first: int, reached: int, last: int) -> None:
        """Step on from a restored state, past the step that was reached before."""
        self.steps(first, first)
        self.note("recovery.first_step", step=first, at_s=self.clock_s)
        self.steps(first + 1, reached + 1)
        self.note("recovery.caught_up", step=reached + 1, at_s=self.clock_s)
        self.steps(reached + 2, last)

    def finish(self, step: int) -> None:
        """End well; the last save takes 2 s that the wall time does not count."""
        self.note("run.finished", step=step, after_s=2.0, applied=step, digest="d" * 16, exit_code=0)
