"""What a difference every ten steps costs the training loop; one JSON object on the last line.

    benchmarks/cost_reference.py [--small]

One rank, pinned to core 0. What a save leaves to the background (encoding, upload, commit) and the S3 server are
pinned to core 1. Stretches of ten steps with a save at their end take turns with stretches without; a step takes two
seconds or more. The keyframe that the differences build on is written before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from one_engine import config_for, load, meta_for, one_engine
from training_state import LARGE, Recipe, states

from stormsail.platform.checkpoint.chain import ChainPolicy
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.platform.storage.embedded import EmbeddedServer
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import ObjectStore
from stormsail.workers import factories
from stormsail.workers.batches import BatchReader
from stormsail.workers.deltas import Deltas
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.snapshot import SnapshotWriter

STRETCH = 10
STRETCHES = 5
STEP_S = 2.0
_TRAINING, _BACKGROUND = {0}, {1}
_LIMIT_S = 300.0


class Loop:
    """Training steps, each of as many micro-batches as make it long enough."""

    def __init__(self, engine: ZeroEngine, config: RunConfig) -> None:
        self.engine = engine
        self.reader = BatchReader(
            factories.build_data(config.data),
            rank=0,
            world_size=1,
            global_batch=1,
            micro_batch=1,
            sequence_tokens=config.data.sequence_tokens,
        )
        self.order = DataOrder(self.reader.samples, config.seed, ())
        self.position = 0
        self.micro_batches = 1

    def step(self) -> None:
        """One step."""
        for index in range(self.micro_batches):
            (batch,) = self.reader.micro_batches(self.position, self.order)
            self.position += 1
            last = index == self.micro_batches - 1
            self.engine.forward_backward(batch, 1.0 / (self.reader.nominal_tokens * self.micro_batches), last=last)
        self.engine.set_learning_rate(1e-4)
        self.engine.apply()

    def lengthen(self) -> None:
        """Take as many micro-batches as a step of `STEP_S` needs, with something to spare."""
        for count in (2, 6):
            self.micro_batches = count
            begun = time.perf_counter()
            self.step()
            took_s = time.perf_counter() - begun
        self.micro_batches = math.ceil(1.15 * STEP_S / took_s * count)


class Saver:
    """Saves as a run does, with everything but the copy on the other core."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.bytes: list[int] = []
        self.metas: dict[int, CheckpointMeta] = {}
        os.sched_setaffinity(0, _BACKGROUND)  # threads that begin now stay there
        self.writer = SnapshotWriter(
            store,
            rank=0,
            world_size=1,
            deliver=self._deliver,
            missed=lambda _generation, step, why: sys.exit(f"the save of step {step} was missed: {why}"),
            deadline_s=_LIMIT_S,
            deltas=Deltas(store, world_size=1, policy=ChainPolicy(), noted=lambda *what: sys.exit(f"in full: {what}")),
        )
        os.sched_setaffinity(0, _TRAINING)

    def _deliver(self, part: RankPart, meta: CheckpointMeta | None, _took_s: float) -> None:
        if meta is None:
            sys.exit("a save without its metadata")
        commit(self.store, [part], meta, parent=None, time_s=time.time())
        self.bytes.append(part.stored_bytes)

    def save(self, engine: ZeroEngine, step: int) -> None:
        """The copy; the rest goes on behind it."""
        if not self.writer.take(engine, generation=1, step=step, meta=meta_for(engine, step)):
            sys.exit("an earlier save is not finished")

    def wait(self) -> None:
        """Until everything is on the store."""
        if not self.writer.wait(_LIMIT_S):
            sys.exit("a save took too long")


def measure(*, small: bool) -> dict[str, float]:
    """Seconds of a stretch with and without a save and how far they are apart, core-seconds and bytes of a save.

    The core-seconds are those of this process: the S3 server, which shares the other core, is not in them.
    """
    recipe = Recipe() if small else LARGE
    found = states(recipe)
    config = config_for(recipe)
    with tempfile.TemporaryDirectory() as name, one_engine(config) as engine:
        folder = Path(name)
        os.sched_setaffinity(0, _BACKGROUND)  # the server inherits it
        server = EmbeddedServer(folder / "server", folder / "keys.json")
        store = open_store(server.start().child("run"))
        ensure_format(store)
        try:
            saver = Saver(store)
            load(engine, found, found.keyframe)
            return {**_turns(Loop(engine, config), saver), "parameters": found.parameters}
        finally:
            server.stop()


def _turns(loop: Loop, saver: Saver) -> dict[str, float]:
    loop.lengthen()
    saver.save(loop.engine, STRETCH)
    saver.wait()
    saver.bytes.clear()
    took: dict[bool, list[float]] = {False: [], True: []}
    core_s: list[float] = []
    for number in range(STRETCHES):
        for saving in (False, True):
            begun, cpu = time.perf_counter(), time.process_time() - time.thread_time()
            if saving:
                saver.save(loop.engine, (number + 2) * STRETCH)
            for _ in range(STRETCH):
                loop.step()
            took[saving].append(time.perf_counter() - begun)
            saver.wait()  # before the stretch without
            if saving:
                core_s.append(time.process_time() - time.thread_time() - cpu)
    return {
        "with": statistics.fmean(took[True]),
        "without": statistics.fmean(took[False]),
        "step": statistics.fmean(took[False]) / STRETCH,
        "with_spread": max(took[True]) - min(took[True]),
        "without_spread": max(took[False]) - min(took[False]),
        "core_s": statistics.fmean(core_s),
        "bytes": statistics.fmean(saver.bytes),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with redirect_stdout(sys.stderr):
        found = measure(small=options.small)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
