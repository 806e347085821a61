"""All named spike rules against the default detectors: recall, latency and false incidents, on the same curves.

    benchmarks/detectors.py [--small] [--json] [--curves FOLDER [--labels FILE]]

Always: seeded runs made here, healthy ones and five forms of trouble. Their seeds are odd; thresholds were chosen on
even ones. With --curves: labelled curves of real runs as well. A fragment of under 40 rows is judged behind 300 calm
made-up rows, a part that begins where another ends as its continuation.

A rule's alarm counts as an incident whatever its authors made it for: the question is what it would have cost as one.
The exit code is 1 where the default misses a bar.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType

from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve, Point, rows_of
from stormsail.supervisor.backtest.engine import Alarm, run
from stormsail.supervisor.backtest.labels import Label
from stormsail.supervisor.backtest.reading import read_curves, read_labels
from stormsail.supervisor.backtest.scoring import Score, score
from stormsail.supervisor.backtest.synthetic import FORMS, Trouble, calm_before, healthy, troubled
from stormsail.workers.detect.rules.registry import ARTICLE, OURS, PROJECTS, AnyRule
from stormsail.workers.detect.rules.rule import Running

FRAGMENT_ROWS = 40
RECALL_BAR, RECALL_AIM = 0.9, 1.0
FALSE_BAR = 0.1  # incidents per 10,000 healthy steps: one in 100,000
MEMORY_BAR_MB = 10.0
COARSE_STRIDE = 20
FAST_FORMS = ("spike", "level_shift", "resume_fault")
OURS_NAME = "default"


@dataclass(frozen=True, slots=True)
class Case:
    """One curve to judge, with what came before it and what is known about it."""

    curve: Curve
    labels: tuple[Label, ...] = ()
    past: tuple[Point, ...] = ()
    restarted: bool | None = None


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is made: healthy runs and their rows, runs per form of trouble, rows for the memory."""

    runs: int
    rows: int
    per_form: int
    memory_rows: int


SMALL = Amount(6, 2000, 4, 20_000)
FULL = Amount(20, 5000, 20, 1_000_000)


def labelled(folder: Path, labels_file: Path) -> list[Case]:
    """The labelled curves of a folder."""
    labels = read_labels(labels_file)
    known = {label.series for label in labels}
    curves = [curve for curve in read_curves([str(folder)], Columns()).curves if curve.name in known]
    return [_placed(curve, curves, labels) for curve in curves]


def _placed(curve: Curve, curves: Sequence[Curve], labels: tuple[Label, ...]) -> Case:
    if len(curve.points) < FRAGMENT_ROWS:
        return Case(curve, labels, calm_before(curve.points, 300))
    for other in curves:
        if other is not curve and abs(other.points[-1].step - curve.points[0].step) <= curve.stride:
            return Case(curve, labels, other.points, restarted=True)
    return Case(curve, labels)


def calm_runs(amount: Amount, stride: int = 1) -> list[Case]:
    """Healthy runs, every third without norms."""
    return [
        Case(healthy(seed, amount.rows, stride=stride, norms=index % 3 < 2))  # noqa: PLR2004 - one in three
        for index, seed in enumerate(_seeds(amount.runs))
    ]


def trouble_runs(kind: str, amount: Amount, stride: int = 1) -> list[Case]:
    """Runs with one form of trouble."""
    return [_trouble(kind, seed, stride) for seed in _seeds(amount.per_form)]


def _trouble(kind: str, seed: int, stride: int) -> Case:
    draw = Random(f"{kind} {seed}")
    size, length = {
        "spike": (draw.uniform(0.4, 4.0), draw.uniform(40.0, 400.0)),
        "level_shift": (draw.uniform(0.35, 0.9), 1.0),
        "slow_divergence": (draw.uniform(0.7, 2.0), draw.uniform(200.0, 2000.0)),
        "oscillation": (draw.uniform(0.2, 0.5), 600.0),
        "resume_fault": (draw.uniform(0.4, 1.2), draw.uniform(8.0, 30.0)),
    }[kind]
    rows = 3200 if kind == "slow_divergence" else 2200
    rows = rows if stride == 1 else 500
    at = (1200 if stride == 1 else 300) * stride
    curve, label = troubled(seed, rows, Trouble(kind, at, size, length), stride=stride, norms=seed % 3 != 0)
    if kind != "resume_fault":
        return Case(curve, (label,))
    split = next(index for index, point in enumerate(curve.points) if point.step >= at)
    return Case(replace(curve, points=curve.points[split:]), (label,), curve.points[:split], restarted=True)


def _seeds(count: int) -> Iterator[int]:
    return iter(range(1, 2 * count, 2))


def judge(rules: Sequence[AnyRule], cases: Sequence[Case]) -> tuple[Score, int]:
    """The score of these rules together, and the runs in which they said anything after the onset."""
    total, spoke = Score(), 0
    for case in cases:
        alarms = run(rules, case.curve, case.past, restarted=case.restarted)
        total += score(case.curve, alarms, case.labels)
        spoke += _spoke(alarms, case)
    return total, spoke


def _spoke(alarms: Sequence[Alarm], case: Case) -> bool:
    return any(alarm.step >= label.start for alarm in alarms for label in case.labels)


def state_mb(rows: int) -> float:
    """Memory of all default detectors' states after so many rows, in MB."""
    chunk = healthy(1, min(rows, 5000)).points
    runnings = [Running(rule) for rule in OURS]
    for index in range(0, rows, len(chunk)):
        moved = tuple(replace(point, step=point.step + index) for point in chunk)
        for row in rows_of(moved):
            for running in runnings:
                running.observe(row)
    return sum(_size(running.state) for running in runnings) / 1e6


def _size(value: object) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, tuple):
        return size + sum(_size(item) for item in value)
    slots = getattr(value, "__slots__", ())
    return size + sum(_size(getattr(value, name)) for name in slots)


def measure(amount: Amount, curves: list[Case]) -> dict[str, dict[str, float | None]]:
    """Figures by team, by name of the figure."""
    teams: dict[str, Sequence[AnyRule]] = {OURS_NAME: OURS}
    teams |= {rule.name: (rule,) for rule in (*ARTICLE, *PROJECTS)}
    few = replace(amount, runs=amount.runs // 2, rows=amount.rows // 2, per_form=amount.per_form // 2)
    sets = {"healthy": calm_runs(amount), "healthy, coarse": calm_runs(few, COARSE_STRIDE)}
    sets |= {kind: trouble_runs(kind, amount) for kind in FORMS}
    fast = [case for kind in FAST_FORMS for case in trouble_runs(kind, few, COARSE_STRIDE)]
    sets |= {"fast forms, coarse": fast, "slow divergence, coarse": trouble_runs("slow_divergence", few, COARSE_STRIDE)}
    sets = {name: cases for name, cases in {**sets, "labelled": curves}.items() if cases}
    found: dict[str, dict[str, float | None]] = {}
    for name, rules in teams.items():
        figures: dict[str, float | None] = {}
        for kind, cases in sets.items():
            made, spoke = judge(rules, cases)
            if kind == "oscillation":
                figures["seen: oscillation"] = spoke / len(cases)
                continue
            if made.events:
                figures[f"recall: {kind}"] = made.recall
                figures[f"latency: {kind}"] = made.latency(0.5)
            if kind == "labelled" or kind.startswith("healthy"):
                figures[f"false: {kind}"] = made.false_per_10k
        found[name] = figures
        print(f"measured {name}", file=sys.stderr)
    found[OURS_NAME]["memory"] = state_mb(amount.memory_rows)
    return found


UNITS = {"recall": "share", "seen": "share", "latency": "steps, median", "false": "incidents per 10,000 healthy steps"}
BARS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "recall": (RECALL_BAR, RECALL_AIM),
        "seen": (RECALL_BAR, RECALL_AIM),
        "false": (FALSE_BAR, FALSE_BAR),
        # Thresholds were chosen on these curves: here nothing may be lost.
        "recall: labelled": (1.0, 1.0),
        "false: labelled": (0.0, 0.0),
    }
)
"""Bar and aim, by figure or by family of figures."""


def bar_of(figure: str) -> tuple[float | None, float | None]:
    """Bar and aim of a figure; a latency has none."""
    family = figure.split(":", maxsplit=1)[0]
    return BARS.get(figure, BARS.get(family, (None, None)))


def passes(figure: str, value: float | None) -> bool | None:
    """Whether a figure of the default meets its bar; None where it has none, or was not measured."""
    bar, _ = bar_of(figure)
    if bar is None or value is None:
        return None
    return value <= bar if figure.startswith("false") else value >= bar


def to_rows(found: dict[str, dict[str, float | None]]) -> list[dict[str, object]]:
    """One row for each figure and each rule beside the default."""
    ours = found[OURS_NAME]
    rows: list[dict[str, object]] = []
    for figure, value in ours.items():
        family = figure.split(":")[0]
        if family == "memory":
            small = value is not None and value <= MEMORY_BAR_MB
            rows.append(_row("state of the default detectors", "MB", value, bar=(MEMORY_BAR_MB, None), passed=small))
            continue
        rows += [
            _row(
                figure,
                UNITS[family],
                value,
                reference=figures.get(figure),
                name=name,
                bar=bar_of(figure),
                passed=passes(figure, value),
            )
            for name, figures in found.items()
            if name != OURS_NAME
        ]
    return rows


def _row(
    figure: str,
    unit: str,
    ours: float | None,
    *,
    reference: float | None = None,
    name: str = "",
    bar: tuple[float | None, float | None],
    passed: bool | None,
) -> dict[str, object]:
    limit, aim = bar
    ratio = ours / reference if ours is not None and reference else None
    return {
        "figure": figure,
        "unit": unit,
        "ours": ours,
        "reference": reference,
        "reference_name": name,
        "ratio": ratio,
        "bar": limit,
        "aim": aim,
        "pass": passed,
    }


def table(found: dict[str, dict[str, float | None]]) -> str:
    """A line for each rule, a column for each set of curves; what the default misses is marked and named."""
    ours = found[OURS_NAME]
    columns = [figure for figure in ours if figure.split(":")[0] in ("false", "recall", "seen")]
    head = ["rule", *(figure.replace("false: ", "false/10k: ").replace("_", " ") for figure in columns)]
    lines = [head, *([name, *(_entry(of, figure) for figure in columns)] for name, of in found.items())]
    lines.append(["bar", *(_cell(bar_of(figure)[0]) for figure in columns)])
    missed = [column for column, figure in enumerate(columns, start=1) if passes(figure, ours[figure]) is False]
    for column in missed:
        lines[1][column] += " missed"
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]
    text.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    memory = f"state of the default detectors: {ours['memory']:.3f} MB (bar {MEMORY_BAR_MB:g})"
    legend = f"recall as a share, behind it the median latency in steps; coarse: one row in {COARSE_STRIDE} steps"
    named = [f"missed by the default: {', '.join(head[column] for column in missed)}"] if missed else []
    return "\n".join([*text, legend, *named, memory])


def _entry(of: dict[str, float | None], figure: str) -> str:
    latency = of.get(figure.replace("recall", "latency")) if figure.startswith("recall") else None
    return _cell(of.get(figure)) + ("" if latency is None else f" ({latency:g})")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--small", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="labelled curves of real runs")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="default: labels.csv in that folder")
    options = parser.parse_args()
    curves = labelled(options.curves, options.labels or options.curves / "labels.csv") if options.curves else []
    found = measure(SMALL if options.small else FULL, curves)
    rows = to_rows(found)
    if options.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        print(json.dumps({"benchmark": "detectors", "machine": machine, "rows": rows}))
    else:
        print(table(found))
    return 0 if all(row["pass"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
