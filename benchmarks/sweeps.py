"""What Ray Tune costs a sweep, and whether the edge of the stable band can be told from small widths.

    benchmarks/sweeps.py [--small] [--json] [--only throughput|edge]

throughput: the same trials by hand, one after another in one process, and through the driver on one CPU, in turns. Both begin with
a new process that imports everything. The bar is 0.9 of the hand's trials per second. The share of the time that went
into steps is told too: it does not depend on what else the machine does.

edge: the largest stable learning rate at three widths, their fit, and what it expects at four times the largest
width, against what is measured there. The bar is one step of the grid; an edge that nobody has seen misses it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from checkpoint_rows.row import Row, make_row, table

from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.tuning.driver import Batch, run_batch
from stormsail.tuning.edge import Edge, edges_of, fit_edges, grid_steps_apart
from stormsail.tuning.objective import best_losses
from stormsail.tuning.proxy import trial_config
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial
from stormsail.tuning.trainable import Job, run_job

THROUGHPUT_BAR, EDGE_BAR = 0.9, 1
CELL = Cell(0.95, "1", 0.05)
BASE = 16


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is run."""

    trials: int
    trial_steps: int
    turns: int
    edge_steps: int
    seeds: int


# What a batch costs once is spread over as many trials as in a small sweep; the examples have ten times more.
FULL, SMALL = Amount(32, 200, 2, 120, 2), Amount(6, 100, 1, 60, 1)


def target() -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "benchmark",
            "train": {"steps": 1000, "global_batch": 8, "micro_batch": 8},
            "model": {"args": {"d_model": 64, "heads": 4, "layers": 2}},
            "data": {"sequence_tokens": 32},
            "tracking": {"uri": None},
        }
    )


def sweep_of(widths: list[int], steps: int) -> SweepConfig:
    proxies = [{"name": f"w{width}", "steps": steps, "d_model": width} for width in widths]
    return SweepConfig.model_validate(
        {"name": "benchmark", "target": "none", "proxies": proxies, "trials": {"max_concurrent": 1}}
    )


def jobs_of(amount: Amount, folder: Path) -> list[Job]:
    sweep = sweep_of([64], amount.trial_steps)
    trials = [Trial("w64", CELL, 0.01, seed) for seed in range(amount.trials)]
    return [job_of(sweep, trial, folder) for trial in trials]


def job_of(sweep: SweepConfig, trial: Trial, folder: Path) -> Job:
    return Job(
        trial=trial,
        config=dump_config(trial_config(target(), sweep, trial)),
        store=StoreAddress(f"file://{folder}"),
        kind="bare",
        rungs=(40, 80),
        checkpoint_steps=50,
        time_limit_s=3600.0,
        gpu=False,
        home=str(Home.here().path),
        import_paths=(),
    )


def by_hand(said: list[dict[str, object]]) -> None:
    """Run jobs one after another; called in a process of its own."""
    from pydantic import TypeAdapter

    for job in TypeAdapter(list[Job]).validate_python(said):
        run_job(job, lambda _: None)


@dataclass(frozen=True, slots=True)
class Throughput:
    """What was measured, by `hand` and `tune`."""

    trials: int
    took_s: Mapping[str, float]
    share_in_steps: Mapping[str, float]

    def rows(self) -> list[Row]:
        hand, tune = (self.trials / self.took_s[kind] for kind in ("hand", "tune"))
        shares = self.share_in_steps
        against = "the same trials by hand"
        return [
            make_row(
                "trials through the driver", "trials/s", tune, hand,
                against=against, bars=(THROUGHPUT_BAR, None), lower=False, by_ratio=True,
            ),
            make_row("share of the time in steps", "of 1", shares["tune"], shares["hand"], against=against),
        ]  # fmt: skip


def throughput(amount: Amount) -> Throughput:
    from stormsail.supervisor.cluster import connect
    from stormsail.supervisor.host.lease import hold

    home = Home.here()
    took = {"hand": 0.0, "tune": 0.0}
    steps_s = {"hand": 0.0, "tune": 0.0}
    with hold(home), tempfile.TemporaryDirectory() as scratch:
        connect(target(), home, print)
        for turn in range(amount.turns):
            for kind in ("hand", "tune"):
                folder = Path(scratch) / f"{kind}{turn}"
                jobs = jobs_of(amount, folder)
                begun = time.monotonic()
                if kind == "hand":
                    text = json.dumps([asdict(job) for job in jobs])
                    subprocess.run(
                        [sys.executable, __file__, "--by-hand"], input=text, text=True, check=True, timeout=1800
                    )
                else:
                    run_tune(jobs, SweepRecords(open_store(jobs[0].store)), Path(scratch))
                took[kind] += time.monotonic() - begun
                found = SweepRecords(open_store(jobs[0].store)).trials()
                assert len(found) == amount.trials
                steps_s[kind] += sum(one.wall_s for one in found.values())
    return Throughput(amount.trials * amount.turns, took, {kind: steps_s[kind] / took[kind] for kind in took})


def run_tune(jobs: list[Job], records: SweepRecords, scratch: Path) -> None:
    sweep = sweep_of([64], 1)
    done = run_batch(
        Batch(tuple(jobs), 40),
        sweep,
        target(),
        records=records,
        folder=scratch,
        label="benchmark",
        noted=lambda _: None,
    )
    assert not done.errors, done.errors


@dataclass(frozen=True, slots=True)
class Edges:
    """What was measured, by width; the widest is the one that is predicted."""

    grid: tuple[float, ...]
    found: Mapping[int, Edge]

    def rows(self) -> list[Row]:
        *narrow, wide = sorted(self.found)
        fit, truth = fit_edges((width, self.found[width]) for width in narrow), known_end(self.found[wide])
        if fit is not None and not fit.tells_drift:
            fit = None
        off = grid_steps_apart(fit.expected(wide), truth, self.grid) if fit is not None and truth is not None else None
        return [
            *(_or_none(f"edge at width {width}", "learning rate", known_end(self.found[width])) for width in narrow),
            _or_none("exponent of the width", "of 1", None if fit is None else fit.likely.slope),
            _or_none(
                f"edge expected at width {wide}", "learning rate", None if fit is None else fit.expected(wide),
                reference=truth, against="the edge there",
            ),
            _or_none("distance of the two", "grid steps", None if off is None else float(off), bar=EDGE_BAR),
        ]  # fmt: skip


def _or_none(
    figure: str,
    unit: str,
    value: float | None,
    *,
    reference: float | None = None,
    against: str = "",
    bar: float | None = None,
) -> Row:
    """A row; what nobody has seen misses its bar."""
    row = make_row(figure, unit, math.nan if value is None else value, reference, against=against, bars=(bar, None))
    unseen: Row = {"ours": None, "ratio": None, "pass": None if bar is None else False}
    return row if value is not None else row | unseen


def edge(amount: Amount) -> Edges:
    grid = tuple(0.02 * 2**exponent for exponent in range(9))
    widths = [BASE, 2 * BASE, 4 * BASE, 16 * BASE]
    edges: dict[int, Edge] = {}
    with tempfile.TemporaryDirectory() as scratch:
        sweep = sweep_of(widths, amount.edge_steps)
        for width in widths:
            records = SweepRecords(open_store(StoreAddress(f"file://{scratch}/{width}")))
            trials = [Trial(f"w{width}", CELL, lr, seed) for lr in grid for seed in range(amount.seeds)]
            for trial in trials:
                run_job(job_of(sweep, trial, Path(scratch) / str(width)), lambda _: None)
            found = list(records.trials().values())
            edges[width] = edges_of(found, best_losses(found))[f"w{width}"]
    return Edges(grid, edges)


def known_end(edge: Edge) -> float | None:
    """The end of a band that ends within the grid; beyond it nobody has looked."""
    return None if edge.open_end else edge.lr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=["throughput", "edge"])
    parser.add_argument("--by-hand", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.by_hand:
        by_hand(json.loads(sys.stdin.read()))
        return 0
    amount = SMALL if words.small else FULL
    rows: list[Row] = []
    if words.only in (None, "throughput"):
        rows += throughput(amount).rows()
    if words.only in (None, "edge"):
        rows += edge(amount).rows()
    if words.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        print(json.dumps({"benchmark": "sweeps", "machine": machine, "rows": rows}, allow_nan=False))
    else:
        print(table(rows))
    return 0 if all(row["pass"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
