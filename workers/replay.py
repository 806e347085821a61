"""The steps of an incident once more, in variants, to find out what it came from.

From a state before the onset the same steps are computed again as they were, and, if that brings the trouble back,
with one thing changed at a time. What runs is a `Subject`; here is only the order of the experiments and when enough
is known. Every decision follows from reduced values, so that all ranks take it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from stormsail.platform.data.order import merge_ranges
from stormsail.platform.diagnosis import Outcome, ReplayPlan, ReplayResult, SampleScore, Sign, TraceRow, Variant
from stormsail.workers.detect.harm import HEALED, harms, healed, suspects_of
from stormsail.workers.detect.signs import Limits, limits_of, signs_of

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_CONTROL_STEPS = 4  # calm steps whose samples are scored beside those of the window
_SCORES_PER_STEP = 3  # a forward pass alone costs about a third of a step
_HOPELESS_STEPS = 3
_HOPELESS = 0.3


class Subject(Protocol):
    """A run that can be taken back; every method is collective."""

    @property
    def names(self) -> tuple[str, ...]:
        """Layer groups, from the model's input to its output."""

    def load(self) -> None:
        """Go to the state that the plan names."""

    def keep(self) -> None:
        """Remember the present state."""

    def back(self, precision: str) -> None:
        """Go to the kept state, in an engine of this precision."""

    def step(self, step: int, *, leave_out: Ranges, lr_factor: float) -> TraceRow:
        """Run a step; positions of `leave_out` are skipped besides what the run skips anyway."""

    def score(self, step: int, *, leave_out: Ranges) -> Sequence[SampleScore]:
        """The loss of each sample of a step's batch under the present weights, without learning from it."""


@dataclass
class _Bench:
    """A replay under way."""

    plan: ReplayPlan
    subject: Subject
    precision: str
    limits: Limits
    used: int = 0
    scored: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    reference: tuple[float, ...] = ()

    @property
    def spent(self) -> int:
        return self.used + -(-self.scored // _SCORES_PER_STEP)

    def affords(self, steps: int, scores: int = 0) -> bool:
        return self.used + steps + -(-(self.scored + scores) // _SCORES_PER_STEP) <= self.plan.budget_steps

    def step(self, step: int, leave_out: Ranges = (), lr_factor: float = 1.0) -> TraceRow:
        self.used += 1
        return self.subject.step(step, leave_out=leave_out, lr_factor=lr_factor)

    def score(self, step: int, leave_out: Ranges = ()) -> list[SampleScore]:
        self.scored += 1
        return list(self.subject.score(step, leave_out=leave_out))


def replay(plan: ReplayPlan, subject: Subject, precision: str) -> ReplayResult:
    """Carry out a plan (collective).

    Args:
        plan: What to replay.
        subject: What runs; its state afterwards is any.
        precision: The run's own.

    Returns:
        What was found. With a budget that does not reach through one window, only a `problem`.
    """
    limits = limits_of(plan.calm)
    if limits is None:
        return ReplayResult(problem=f"only {len(plan.calm)} calm steps are known from before the onset")
    bench = _Bench(plan, subject, precision, limits)
    if plan.onset < 0:
        return _search(bench)
    first, stop = plan.window
    length = stop - first
    control = range(max(plan.start, first - _CONTROL_STEPS), first)
    if not bench.affords(first - plan.start + length, length + len(control)):
        needed = first - plan.start + length + -(-(length + len(control)) // _SCORES_PER_STEP)
        return ReplayResult(
            problem=f"steps {plan.start} to {stop} once more are {needed} steps, "
            f"diagnose.budget_steps is {plan.budget_steps}"
        )
    subject.load()
    prefix = tuple(bench.step(step) for step in range(plan.start, first))
    subject.keep()
    scores = [score for step in (*control, *range(first, stop)) for score in bench.score(step)]
    expected = _expected(scores, plan.window)
    _run(bench, Variant.SAME, expected)
    found = suspects_of(scores, plan.onset)
    suspects = merge_ranges(tuple((score.position, score.position + 1) for score in found))
    came_back = _came_back(bench)
    if (not came_back or (plan.exact and not _same_bits(bench))) and bench.affords(length):
        _run(bench, Variant.SAME, expected)
    if came_back:
        bench.reference = harms(bench.outcomes[0].rows, expected, limits)
        for variant in _order(bench, suspects):
            if _try(bench, variant, expected, suspects):
                break
    return ReplayResult(prefix, tuple(bench.outcomes), tuple(scores), suspects, steps=bench.spent, names=subject.names)


def _search(bench: _Bench) -> ReplayResult:
    """Nothing looks ill: compute the window again, and once more up to where its bits differ from the recorded."""
    first, stop = bench.plan.window
    if not bench.affords(stop - first):
        return ReplayResult(problem=f"{stop - first} steps, diagnose.budget_steps is {bench.plan.budget_steps}")
    bench.subject.load()
    bench.subject.keep()
    recorded = {row.step: row for row in bench.plan.recorded}
    rows = tuple(bench.step(step) for step in range(first, stop))
    bench.outcomes.append(Outcome(Variant.SAME, rows, (0.0,) * len(rows), finished=True))
    differs = next((row.step for row in rows if row.step in recorded and bits(row) != bits(recorded[row.step])), None)
    if differs is not None and bench.affords(differs + 1 - first):
        bench.subject.back(bench.precision)
        again = tuple(bench.step(step) for step in range(first, differs + 1))
        bench.outcomes.append(Outcome(Variant.SAME, again, (0.0,) * len(again), finished=differs + 1 == stop))
    return ReplayResult(outcomes=tuple(bench.outcomes), steps=bench.spent, names=bench.subject.names)


def _expected(scores: Sequence[SampleScore], window: tuple[int, int]) -> tuple[float, ...]:
    costs: list[float] = []
    for step in range(*window):
        losses = [score.loss for score in scores if score.step == step]
        costs.append(sum(losses) / len(losses) if losses else 0.0)
    return tuple(costs)


def _came_back(bench: _Bench) -> bool:
    """Whether the same steps gave the same trouble, by and large; the bits are for the verdict to compare."""
    same = bench.outcomes[0]
    recorded = {row.step: row for row in bench.plan.recorded}
    steps = [index for index, row in enumerate(same.rows) if row.step in recorded]
    costs = [same.expected[index] for index in steps]
    before = harms([recorded[same.rows[index].step] for index in steps], costs, bench.limits)
    after = harms([same.rows[index] for index in steps], costs, bench.limits)
    return healed(before, after) < HEALED


def _same_bits(bench: _Bench) -> bool:
    recorded = {row.step: row for row in bench.plan.recorded}
    return all(bits(row) == bits(recorded[row.step]) for row in bench.outcomes[0].rows if row.step in recorded)


def bits(row: TraceRow) -> tuple[str, str, int]:
    """What must come again exactly where arithmetic repeats."""
    return row.loss.hex(), row.grad_norm.hex(), row.nonfinite


def _order(bench: _Bench, suspects: Ranges) -> list[Variant]:
    """The most telling experiment first, so that the budget is seldom used up."""
    signs = {sign for row in bench.outcomes[0].rows for sign in signs_of(row, bench.limits)}
    order = [Variant.WITHOUT_SUSPECTS] if suspects else []
    order.append(Variant.SMALLER_LR)
    if bench.precision != "fp32":
        order.insert(0 if Sign.NONFINITE in signs else len(order), Variant.FP32)
    return order


def _try(bench: _Bench, variant: Variant, expected: tuple[float, ...], suspects: Ranges) -> bool:
    """Run a variant if the budget allows; tells whether it healed."""
    length = bench.plan.window[1] - bench.plan.window[0]
    scores = length if variant is Variant.WITHOUT_SUSPECTS else 0
    if not bench.affords(length, scores):
        return False
    _run(bench, variant, expected, suspects if variant is Variant.WITHOUT_SUSPECTS else ())
    done = bench.outcomes[-1]
    return done.finished and healed(bench.reference, harms(done.rows, done.expected, bench.limits)) >= HEALED


def _run(bench: _Bench, variant: Variant, expected: tuple[float, ...], leave_out: Ranges = ()) -> None:
    """Run one variant from the kept state to the window's end, or until it is clear that it heals nothing."""
    bench.subject.back("fp32" if variant is Variant.FP32 else bench.precision)
    if leave_out:
        scores = [score for step in range(*bench.plan.window) for score in bench.score(step, leave_out)]
        expected = _expected(scores, bench.plan.window)
    rows: list[TraceRow] = []
    for step in range(*bench.plan.window):
        factor = smaller_rate(bench.plan, bench.limits, step) if variant is Variant.SMALLER_LR else 1.0
        rows.append(bench.step(step, leave_out, factor))
        if variant is not Variant.SAME and _hopeless(bench, rows, expected):
            break
    finished = len(rows) == bench.plan.window[1] - bench.plan.window[0]
    bench.outcomes.append(Outcome(variant, tuple(rows), expected[: len(rows)], finished))


def _hopeless(bench: _Bench, rows: Sequence[TraceRow], expected: Sequence[float]) -> bool:
    now = harms(rows, expected, bench.limits)
    ill = sum(value > 0.0 for value in now) >= _HOPELESS_STEPS
    return ill and healed(bench.reference, now) < _HOPELESS


def smaller_rate(plan: ReplayPlan, limits: Limits, step: int) -> float:
    """The factor on a step's learning rate: back to the calm one where it has jumped, or else one half.

    One half is what the ladder can do at most (`lr.floor`).
    """
    recorded = [row.lr for row in plan.recorded if row.step >= plan.onset and row.lr > 0.0]
    rate = max(recorded, default=0.0)
    return min(0.5, limits.rate / rate) if rate > 0.0 and step >= plan.onset else 1.0
