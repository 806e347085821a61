"""A run whose steps follow a rule that the test writes: the subject of replays, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stormsail.platform.diagnosis import ReplayPlan, SampleScore, Trace, TraceRow
from stormsail.workers.replay import Ranges

NAMES = ("embed", "blocks.0", "blocks.1", "blocks.2", "norm")
BATCH = 4
ONSET, LAST = 60, 75
"""Where the trouble of a scripted run begins, and its last step."""
Rule = Callable[["Pass", int], TraceRow]
Bad = Callable[[int], bool]


@dataclass
class Pass:
    """How a step is computed.

    Attributes:
        live: Whether this is the run itself and no replay.
        precision: Of the engine.
        leave_out: Positions that are skipped.
        lr_factor: On the planned learning rate.
        number: Counts passes, for rules that differ from one to the next.
    """

    live: bool = False
    precision: str = "bf16"
    leave_out: Ranges = ()
    lr_factor: float = 1.0
    number: int = 0


def calm(step: int, **changes: Any) -> TraceRow:
    """A healthy step; its loss wavers a little."""
    values: dict[str, Any] = {
        "step": step,
        "loss": 2.0 + 0.01 * ((step * 7) % 5 - 2),
        "grad_norm": 1.0 + 0.02 * ((step * 3) % 7 - 3),
        "groups": (0.5, 0.5, 0.4, 0.4, 0.1),
        "update_rms": 0.2,
        "lr": 1e-3,
        "zero_share": 0.0,
        "batch": step + 1,
    }
    return TraceRow(**{**values, **changes})


def ill(step: int, **changes: Any) -> TraceRow:
    """A step in trouble: its loss is much too high."""
    return calm(step, **{"loss": 3.5, **changes})


def never(_position: int) -> bool:
    """No sample is bad."""
    return False


@dataclass
class ScriptedRun:
    """A subject of replays.

    Attributes:
        rule: Gives each step's row.
        bad: Which samples are bad: their loss is 6 nats under any weights.
    """

    rule: Rule
    bad: Callable[[int], bool] = never
    now: Pass = field(default_factory=Pass)
    steps: int = 0
    scores: int = 0
    kept: int = 0
    names: tuple[str, ...] = NAMES

    def load(self) -> None:
        self.now = Pass(number=self.now.number + 1)

    def keep(self) -> None:
        self.kept += 1

    def back(self, precision: str) -> None:
        assert self.kept == 1
        self.now = Pass(precision=precision, number=self.now.number + 1)

    def step(self, step: int, *, leave_out: Ranges, lr_factor: float) -> TraceRow:
        self.steps += 1
        self.now.leave_out, self.now.lr_factor = leave_out, lr_factor
        return self.rule(self.now, step)

    def score(self, step: int, *, leave_out: Ranges) -> Sequence[SampleScore]:
        self.scores += 1
        positions = positions_of(step, leave_out)
        return [
            SampleScore(step, place, 6.0 if self.bad(place) else 2.0 + 0.1 * (place % 3 - 1)) for place in positions
        ]


def positions_of(step: int, leave_out: Ranges) -> list[int]:
    """The positions of a step's batch."""
    out = {place for start, stop in leave_out for place in range(start, stop)}
    places = [place for place in range((step + 1) * BATCH + len(out)) if place not in out]
    return places[step * BATCH : (step + 1) * BATCH]


def trace_of(rule: Rule, first: int, last: int) -> Trace:
    """The live run's rows from one step to another, both included."""
    live = Pass(live=True)
    return Trace(NAMES, tuple(rule(live, step) for step in range(first, last + 1)))


def plan_for(trace: Trace, *, onset: int, start: int, budget: int = 50, exact: bool = True) -> ReplayPlan:
    """A plan around an onset."""
    return ReplayPlan(
        restore=None,
        start=start,
        window=(onset - 2, onset + 9),
        calm=tuple(row for row in trace.rows if row.step < onset),
        recorded=tuple(row for row in trace.rows if row.step >= start),
        onset=onset,
        exact=exact,
        budget_steps=budget,
    )
