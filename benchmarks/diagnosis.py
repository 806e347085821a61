"""What a diagnosis is worth: twelve injected faults, each at random places and strengths, and what it calls them.

    benchmarks/diagnosis.py [--small] [--json] [--seeds FIRST:STOP] [--only FAULT ...] [--noise SIZE] [--cases]

Every fault strikes a small real run that goes on from a shared saved state. The product's detectors open the incident,
its replay computes the steps again, its classifier speaks. What no detector reports is looked at 20 steps later, as if
a person had asked. The reference is the same classifier without the replay, from the rows alone.

Thresholds were chosen on seeds from 1000 up; what is published comes from seeds below.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from diagnosis_faults import BASE_SEED, FAULTS, FaultCase, make
from diagnosis_lab import BASE_STEP, POST_NORM, PRE_NORM, Lab, Saved, base_state, data_source

from stormsail.platform.data.order import DataOrder
from stormsail.platform.data.source import DataSource
from stormsail.platform.diagnosis import Cause, Diagnosis, SampleScore, Trace, TraceRow
from stormsail.platform.messages import CheckpointRef
from stormsail.supervisor.case import open_case
from stormsail.supervisor.classify import classify
from stormsail.supervisor.diagnose import plan_replay
from stormsail.workers.detect.signs import TRACE_STEPS
from stormsail.workers.detect.verdict import VerdictKind
from stormsail.workers.replay import Ranges, replay

SMALL, FULL = 2, 10
EVERY = 10
ASKED_AFTER = 20
BUDGET = 50
F1_BAR, F1_AIM = 0.85, 0.95
HARDWARE_BAR = 1 / 120


@dataclass(frozen=True, slots=True)
class Base:
    """A shared saved state and the rows before it."""

    saved: Saved
    rows: tuple[TraceRow, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A case and what was said of it."""

    case: FaultCase
    seed: int
    said: Diagnosis
    hint: Diagnosis
    opened: str
    steps: int


class LabSubject:
    """A lab run as a replay takes it; one-off faults do not strike here."""

    def __init__(self, case: FaultCase, source: DataSource, start: Saved, noise: float) -> None:
        self._lab = Lab(case.architecture, source, BASE_SEED, case.breakage, live=False, noise=noise)
        self._start = self._kept = start

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._lab.names)

    def _order(self, leave_out: Ranges) -> DataOrder:
        return DataOrder(self._lab.samples, BASE_SEED, leave_out)

    def load(self) -> None:
        self._lab.load(self._start)

    def keep(self) -> None:
        self._kept = self._lab.save(0)

    def back(self, precision: str) -> None:
        self._lab.precision = precision
        self._lab.load(self._kept)

    def step(self, step: int, *, leave_out: Ranges, lr_factor: float) -> TraceRow:
        row: TraceRow = self._lab.step(step, order=self._order(leave_out), lr_factor=lr_factor)
        return row

    def score(self, step: int, *, leave_out: Ranges) -> Sequence[SampleScore]:
        found = self._lab.score(step, self._order(leave_out))
        return [SampleScore(step, position, loss) for position, loss in found]


def live(case: FaultCase, base: Base, source: DataSource, noise: float) -> tuple[Trace, int | None, dict[int, Saved]]:
    """Run into the fault: the rows, the onset that a detector reports, and the checkpoints."""
    lab = Lab(case.architecture, source, BASE_SEED, case.breakage, noise=noise)
    lab.load(base.saved)
    order = DataOrder(lab.samples, BASE_SEED)
    rows, saved, onset = list(base.rows), {base.saved.step: base.saved}, None
    for step in range(BASE_STEP, case.step + ASKED_AFTER + 1):
        if step % EVERY == 0:
            saved[step] = lab.save(step)
        rows.append(lab.step(step, order=order))
        if lab.verdict.kind is VerdictKind.INCIDENT:
            onset = lab.verdict.onset
            break
    return Trace(lab.names, tuple(rows[-TRACE_STEPS:])), onset, saved


def tell(case: FaultCase, seed: int, base: Base, source: DataSource, noise: float = 0.0) -> Told:
    """Run into a fault and diagnose it."""
    trace, onset, saved = live(case, base, source, noise)
    found = open_case(trace, onset)
    hint = classify(found)
    said, steps = hint, 0
    if found is not None:
        plan = plan_replay(found, [CheckpointRef(1, step) for step in saved], exact=not noise, budget_steps=BUDGET)
        if not isinstance(plan, str):
            result = replay(plan, LabSubject(case, source, saved[plan.start], noise), "bf16")
            said, steps = classify(found, plan, result), result.steps
    return Told(case, seed, said, hint, "asked" if onset is None else "detector", steps)


def bases(source: DataSource, wanted: Sequence[str]) -> dict[str, Base]:
    """The shared saved states, one for each architecture that is needed."""
    found = {}
    needed = {FAULTS[name][1].name for name in wanted}
    for architecture in (PRE_NORM, POST_NORM):
        if architecture.name in needed:
            saved, rows = base_state(architecture, source, BASE_SEED)
            found[architecture.name] = Base(saved, tuple(rows))
    return found


# ------------------------------------------------------------------------------------------------------ figures


Pairs = Sequence[tuple[Cause, Cause]]
"""(expected, said) of each case."""


def macro_f1(pairs: Pairs) -> float:
    """Mean F1 over the causes that were expected; a case that is called unknown is missed, and no false alarm."""
    causes = sorted({expected for expected, _ in pairs})
    return sum(_f1(cause, pairs) for cause in causes) / len(causes)


def _f1(cause: Cause, pairs: Pairs) -> float:
    hits = sum(expected is said is cause for expected, said in pairs)
    named = sum(said is cause for _, said in pairs)
    there = sum(expected is cause for expected, _ in pairs)
    return 2.0 * hits / (named + there) if hits else 0.0


def bootstrap(pairs: Pairs, figure: Callable[[Pairs], float], rounds: int = 2000) -> tuple[float, float]:
    """95 % interval of a figure, drawing the cases of each expected cause again."""
    draw = Random(0)
    causes = sorted({expected for expected, _ in pairs})
    by_cause = [[pair for pair in pairs if pair[0] is cause] for cause in causes]
    values = sorted(
        figure([pair for group in by_cause for pair in draw.choices(group, k=len(group))]) for _ in range(rounds)
    )
    return values[int(0.025 * rounds)], values[int(0.975 * rounds)]


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % Wilson interval of a share."""
    z = 1.96
    middle = (hits + z * z / 2.0) / (total + z * z)
    half = z * math.sqrt(hits * (total - hits) / total + z * z / 4.0) / (total + z * z)
    return middle - half, middle + half


def matrix(told: Sequence[Told]) -> str:
    """Fault by fault, what was said of it."""
    columns = [cause for cause in Cause if any(item.said.cause is cause for item in told)]
    lines = [["fault", "expected", *columns]]
    for name in dict.fromkeys(item.case.name for item in told):
        of = [item for item in told if item.case.name == name]
        counts = Counter(item.said.cause for item in of)
        lines.append([name, str(of[0].case.cause), *(str(counts[cause] or "") for cause in columns)])
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    text = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]
    text.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(text)


def to_rows(told: Sequence[Told]) -> list[dict[str, object]]:
    """The agreed rows."""
    said = [(item.case.cause, item.said.cause) for item in told]
    hints = [(item.case.cause, item.hint.cause) for item in told]
    wrong = sum(expected is not Cause.HARDWARE and found is Cause.HARDWARE for expected, found in said)
    wrong_hints = sum(expected is not Cause.HARDWARE and found is Cause.HARDWARE for expected, found in hints)
    f1 = macro_f1(said)
    allowed = len(told) * HARDWARE_BAR
    sure = [item for item in told if item.said.confident]
    right = sum(item.said.cause is item.case.cause for item in sure)
    steps = sorted(item.steps for item in told if item.steps)
    opened = sum(item.opened == "detector" for item in told)
    return [
        _row(
            "macro-F1",
            "share",
            f1,
            reference=macro_f1(hints),
            bar=F1_BAR,
            aim=F1_AIM,
            passed=f1 >= F1_BAR,
            interval=bootstrap(said, macro_f1),
        ),
        _row(
            "wrongly called hardware",
            "cases",
            wrong,
            reference=wrong_hints,
            bar=max(allowed, 1.0),
            aim=0.0,
            passed=wrong <= max(allowed, 1.0),
        ),
        _row("confident verdicts", "share", len(sure) / len(told), interval=wilson(len(sure), len(told))),
        _row(
            "confident verdicts that are right",
            "share",
            right / len(sure) if sure else None,
            interval=wilson(right, len(sure)) if sure else None,
        ),
        _row("steps computed in a replay", "median", steps[len(steps) // 2] if steps else None),
        _row(
            "steps computed in a replay",
            "most",
            steps[-1] if steps else None,
            bar=BUDGET,
            passed=steps[-1:] <= [BUDGET],
        ),
        _row("incidents opened by a detector", "share", opened / len(told)),
    ]


def _row(
    figure: str,
    unit: str,
    ours: float | None,
    *,
    reference: float | None = None,
    bar: float | None = None,
    aim: float | None = None,
    passed: bool | None = None,
    interval: tuple[float, float] | None = None,
) -> dict[str, object]:
    return {
        "figure": figure,
        "unit": unit,
        "ours": ours,
        "reference": reference,
        "reference_name": "" if reference is None else "the same classifier without a replay",
        "ratio": ours / reference if ours is not None and reference else None,
        "bar": bar,
        "aim": aim,
        "pass": passed,
        "interval": None if interval is None else list(interval),
    }


def _line(row: dict[str, object]) -> str:
    def shown(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    parts = [f"{row['figure']} ({row['unit']}): {shown(row['ours'])}"]
    interval = row["interval"]
    if isinstance(interval, list):
        parts.append(f"95 % interval {interval[0]:.3f} to {interval[1]:.3f}")
    parts += [f"{name} {shown(row[name])}" for name in ("bar", "aim") if row[name] is not None]
    if row["reference"] is not None:
        parts.append(f"{row['reference_name']}: {shown(row['reference'])}")
    return ", ".join(parts)


def _tell_case(item: Told) -> str:
    right = "right" if item.said.cause is item.case.cause else "WRONG"
    return (
        f"{right} {item.case.name} (seed {item.seed}) from step {item.case.step}: {item.case.about}; said "
        f"{item.said.cause} ({item.said.confidence:.2f}) from step {item.said.onset}, opened by {item.opened}, "
        f"{item.steps} steps; {'; '.join(item.said.evidence)}; layers {', '.join(item.said.layers) or '-'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--small", action="store_true", help=f"{SMALL} seeds for each fault instead of {FULL}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cases", action="store_true", help="also tell each case, on stderr")
    parser.add_argument("--seeds", metavar="FIRST:STOP", help="other seeds than the published ones")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--noise", type=float, default=0.0, help="relative noise on gradients: nothing repeats exactly")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, stop = map(int, options.seeds.split(":")) if options.seeds else (0, SMALL if options.small else FULL)
    source = data_source()
    begun = time.perf_counter()
    based = bases(source, options.only)
    told: list[Told] = []
    for name in options.only:
        for seed in range(first, stop):
            case = make(name, seed, source.samples(), BASE_STEP)
            told.append(tell(case, seed, based[case.architecture.name], source, options.noise))
            if options.cases:
                print(_tell_case(told[-1]), file=sys.stderr)
        took_s = time.perf_counter() - begun
        print(
            f"{name}: done, {len(told)} of {len(options.only) * (stop - first)} cases in {took_s:.0f} s",
            file=sys.stderr,
        )
    rows = to_rows(told)
    if options.json:
        machine = f"{platform.machine()}, torch {torch.__version__}, one thread"
        cases = [[item.case.name, item.seed, item.case.cause, item.said.cause, item.said.confidence] for item in told]
        print(json.dumps({"benchmark": "diagnosis", "machine": machine, "rows": rows, "cases": cases}))
    else:
        print(matrix(told))
        print("\n".join(map(_line, rows)))
    return 0 if all(row["pass"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
