"""What watching costs: the time inside vitals and verdict on the critical path of the quickstart, two ranks, as shipped.

    benchmarks/overhead.py [--small] [--json] [--steps N]

Two processes train the quickstart's model with its own settings (no faults, no checkpoints, no Ray), in turns of ten
steps: a turn with everything that the step loop watches, and a turn of the same steps' bare work (batch, forward,
backward, update). The figure is the median over the watched steps of the time inside vitals and verdict, without the
waiting for the slower rank, as a share of the median watched step. Beside it stands the difference of the two kinds of
turns with its 95 % interval, bootstrapped over pairs of turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch._C._distributed_c10d import TCPStore

from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.diagnosis import ReplayResult
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef, Directive, Heartbeat, HeartbeatReply, Incident, StepRow, World
from stormsail.platform.storage.memory import MemoryStore
from stormsail.workers import factories, quiet
from stormsail.workers import world as worlds
from stormsail.workers.batches import BatchReader
from stormsail.workers.extension_build import build_extensions
from stormsail.workers.extensions import extension_folder
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.inject import Injector
from stormsail.workers.lean_imports import set_deterministic
from stormsail.workers.loop import StepLoop
from stormsail.workers.schedule import scheduled_lr
from stormsail.workers.seeding import seed_all
from stormsail.workers.session import Session
from stormsail.workers.snapshot import SnapshotWriter

QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart.yaml"
CPU = torch.device("cpu")
RANKS = 2
TURN = 10
WARM = 20  # steps before anything counts
STEPS, SMALL_STEPS = 1000, 340  # watched; a turn's first one knows of no step before, so a tenth gives no figure
BAR, AIM = 2.0, 0.5  # percent of a step
LIMIT_S = 3600.0

Row: TypeAlias = dict[str, Any]


class Rank:
    """One rank with a real step loop and nobody above it.

    Args:
        world: Its place.
        steps: Steps of the schedule.

    Attributes:
        rows: What rank 0 has said.
    """

    def __init__(self, world: World, steps: int) -> None:
        overrides = ["drill.faults=[]", "drill.twin_step=null", f"train.steps={steps}"]
        self.config: RunConfig = load_config(QUICKSTART, overrides=overrides, environ={})
        torch.set_num_threads(self.config.train.threads)
        set_deterministic(deterministic=self.config.train.deterministic)
        self.world = world
        self.rows: list[StepRow] = []
        self.beat = HeartbeatThread(self._hear, attempt=1, rank=world.rank)
        self.snapshots = SnapshotWriter(
            MemoryStore(),
            rank=world.rank,
            world_size=world.world_size,
            deliver=lambda *_: None,
            missed=lambda *_: None,
            deadline_s=60.0,
        )
        train = self.config.train
        self.source = BatchReader(
            factories.build_data(self.config.data),
            rank=world.rank,
            world_size=world.world_size,
            global_batch=train.global_batch,
            micro_batch=train.micro_batch,
            sequence_tokens=self.config.data.sequence_tokens,
        )
        self.session = Session(
            self.config,
            world,
            device=CPU,
            store=MemoryStore(),
            samples=self.source.samples,
            supervisor=self,
            beat=self.beat,
            on_generation=self.snapshots.drop_before,
        )
        self.loop = StepLoop(
            self.session,
            source=self.source,
            supervisor=self,
            beat=self.beat,
            injector=Injector((), rank=world.rank, fired={}, announce=lambda *_: None),
            snapshots=self.snapshots,
        )
        self.loop.obey(Directive(1, precision=train.precision))

    def incident(self, incident: Incident) -> Directive:
        """No incident belongs into a healthy run."""
        raise RuntimeError(f"an incident in a healthy run: {incident}")

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        raise AssertionError((incident, result))

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        """Nothing is restored here."""
        raise RuntimeError(f"{ref}: {problem}")

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        """Nothing is replayed here."""
        raise RuntimeError(f"{generation}, step {step}: {problem}")

    def watched(self) -> float:
        """One step as it is; gives its seconds."""
        begun = time.perf_counter()
        self.loop.step()
        return time.perf_counter() - begun

    def bare(self) -> float:
        """The same step's bare work."""
        begun = time.perf_counter()
        position, engine, config = self.session.position, self.session.engine, self.config
        batches = self.source.micro_batches(position.step, self.session.order)
        seed_all(config.seed, position.step, self.world.rank)
        for index, batch in enumerate(batches):
            engine.forward_backward(
                batch, self.world.world_size / self.source.nominal_tokens, last=index == len(batches) - 1
            )
        engine.set_learning_rate(
            scheduled_lr(
                position.step,
                peak=config.optimizer.lr,
                warmup_steps=config.schedule.warmup_steps,
                total_steps=config.train.steps,
                min_ratio=config.schedule.min_ratio,
            )
        )
        engine.apply()
        position.step += 1
        position.applied += 1
        return time.perf_counter() - begun

    def close(self) -> None:
        """End threads and group."""
        self.loop.close()
        self.snapshots.close(10.0)
        self.beat.close()
        self.session.engine.destroy()
        worlds.leave()

    def _hear(self, beat: Heartbeat) -> HeartbeatReply:
        self.rows += beat.rows
        return HeartbeatReply()


def run_rank(rank: int, port: int, steps: int) -> Row:
    """Take turns; gives what rank 0 measured."""
    quiet.quiet_process(full_logs=True)
    world = World(1, rank, RANKS, "127.0.0.1", port)
    worlds.form(world, local_rank=rank, device=CPU, timeout_s=300.0)
    turns = -(-steps // TURN)
    me = Rank(world, WARM + 2 * turns * TURN)
    for _ in range(WARM):
        me.watched()
    on: list[list[float]] = []
    off: list[list[float]] = []
    for turn in range(turns):
        for kind in ("on", "off") if turn % 2 == 0 else ("off", "on"):
            me.loop.watch.reset()
            if kind == "on":
                on.append([me.watched() for _ in range(TURN)])
            else:
                off.append([me.bare() for _ in range(TURN)])
    me.close()
    if rank != 0:  # rows are rank 0's
        return {}
    values = [row.values for row in me.rows if row.step >= WARM]
    return {
        "on": on,
        "off": off,
        "inside": [value["time.vitals_s"] for value in values if value["time.vitals_s"] > 0.0],
        "share": [value["sampling.share"] for value in values][-1],
        "every": [value["sampling.every_steps"] for value in values][-1],
    }


def measure(steps: int) -> Row:
    """Start the ranks, and give what rank 0 measured."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(steps, [Path(folder) / f"rank-{rank}.log" for rank in range(RANKS)])


def _measure(steps: int, logs: list[Path]) -> Row:
    build_extensions(extension_folder(Home.here()), notify=lambda text: print(text, file=sys.stderr))
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), "--port", str(meeting.port), "--steps", str(steps)],
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, log in zip(ranks, logs, strict=True):
        if rank.returncode != 0:
            raise RuntimeError(f"a rank ended with {rank.returncode}:\n{log.read_text()[-4000:]}")
    found: Row = json.loads(said[0][0].splitlines()[-1])
    return found


def interval(on: list[list[float]], off: list[list[float]], *, draws: int = 2000) -> tuple[float, float, float]:
    """By how many percent watched steps are longer than bare ones: middle, and the ends of the 95 % interval."""
    pairs = [(statistics.median(a), statistics.median(b)) for a, b in zip(on, off, strict=True)]
    draw = random.Random(1)

    def difference(chosen: list[tuple[float, float]]) -> float:
        return 100.0 * statistics.median([(a - b) / b for a, b in chosen])

    found = sorted(difference(draw.choices(pairs, k=len(pairs))) for _ in range(draws))
    return difference(pairs), found[int(0.025 * draws)], found[int(0.975 * draws)]


def to_rows(found: Row) -> list[Row]:
    """The figures."""
    on = statistics.median(second for turn in found["on"] for second in turn)
    off = statistics.median(second for turn in found["off"] for second in turn)
    inside = statistics.median(found["inside"])
    middle, low, high = interval(found["on"], found["off"])
    percent = "% of the step"
    return [
        _row("vitals and verdict, median", percent, 100.0 * inside / on, bar=BAR, aim=AIM),
        _row("vitals and verdict, median time", "ms", 1e3 * inside),
        _row(f"with samples every {found['every']:.0f} steps, running mean", percent, 100.0 * found["share"]),
        _row("step, median", "ms", 1e3 * on, reference=1e3 * off, name="the same steps' bare work"),
        _row("watched against bare turns, median of pairs", "% longer", middle),
        _row("the same, 95 % interval, low", "% longer", low),
        _row("the same, 95 % interval, high", "% longer", high),
        _row("steps measured", "steps", float(len(found["inside"]))),
    ]


def _row(
    figure: str,
    unit: str,
    ours: float,
    *,
    reference: float | None = None,
    name: str = "",
    bar: float | None = None,
    aim: float | None = None,
) -> Row:
    return {
        "figure": figure,
        "unit": unit,
        "ours": ours,
        "reference": reference,
        "reference_name": name,
        "ratio": ours / reference if reference else None,
        "bar": bar,
        "aim": aim,
        "pass": None if bar is None else ours <= bar,
    }


def table(rows: list[Row]) -> str:
    """The rows for people."""
    keys = ["figure", "unit", "ours", "reference", "ratio", "bar", "aim", "pass"]
    lines = [keys, *([_cell(row[key]) for key in keys] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(keys))]
    text = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]
    text.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(text)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--small", action="store_true", help="fewer steps, still over 300 watched ones")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, help="watched steps")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = options.steps or (SMALL_STEPS if options.small else STEPS)
    if options.rank is not None:
        with redirect_stdout(sys.stderr):
            found = run_rank(options.rank, options.port, steps)
        print(json.dumps(found))
        return 0
    rows = to_rows(measure(steps))
    if options.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        print(json.dumps({"benchmark": "overhead", "machine": machine, "rows": rows}))
    else:
        print(table(rows))
    return 0 if all(row["pass"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
