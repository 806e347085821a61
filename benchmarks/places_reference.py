"""Stall of a save and time of a restore, ours and DeepSpeed's, on one engine in turns; one JSON object on the last line.

    benchmarks/places_reference.py [--small]

A process of its own: one rank, one thread, on a model that has taken real steps. Files go to a temporary folder, and
DeepSpeed's are synced, as ours are on any store that keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch._C._distributed_c10d import TCPStore
from training_state import QUICKSTART

from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef, World
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.images import images_in_vault
from stormsail.platform.vault.keeper import VaultKeeper
from stormsail.platform.vault.places import STORE, VAULT
from stormsail.platform.vault.slots import Slot
from stormsail.workers import factories
from stormsail.workers import world as worlds
from stormsail.workers.batches import BatchReader
from stormsail.workers.deltas import deltas_for
from stormsail.workers.detect.verdict import DetectorState
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.extension_build import build_extensions
from stormsail.workers.extensions import extension_folder
from stormsail.workers.restore import Nearby, Restored, restore
from stormsail.workers.snapshot import SnapshotWriter

CPU = torch.device("cpu")
STEPS = 20
ROUNDS = 5
KEYFRAME = CheckpointRef(1, 0)  # the first save; the others are differences to it, as a run makes them by default
_LARGE = ("model.args.d_model=768", "model.args.layers=8", "model.args.heads=12")
_LIMIT_S = 300.0


class Bench:
    """An engine, a vault, a store, and what they took."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.took_s: dict[str, list[float]] = {}
        self.engine = ZeroEngine(config, precision="bf16", rank=0, world_size=1, device=CPU)
        self.state_bytes = 12 * sum(piece.count for piece in self.engine.pieces)
        self.store = LocalStore(folder / "store")
        ensure_format(self.store)
        vault = VaultFolder.of(Home(folder), self.store.url, "benchmark-node")
        self.keeper = VaultKeeper(vault, 4 * self.state_bytes)
        self.parts: list[RankPart] = []
        self.writer = SnapshotWriter(
            self.store,
            rank=0,
            world_size=1,
            deliver=lambda part, _meta, _took_s: self.parts.append(part),
            missed=lambda _generation, _step, why: sys.exit(f"a save was missed: {why}"),
            deadline_s=_LIMIT_S,
            deltas=deltas_for(config, self.store, 1, lambda *what: sys.exit(f"in full: {what}")),
            acquire=self._slots,
        )
        self.scratch = [np.zeros(live.numel(), np.float32) for _, _, live in self.engine.live_buffers()]

    def _slots(self, size_bytes: int) -> list[Slot]:
        names = self.keeper.slots(0, size_bytes, 2, 1)
        return [slot for name in names if (slot := Slot.lease(self.keeper.folder.slots / name)) is not None]

    def train(self) -> None:
        """Real steps, so that weights and moments are those of a training."""
        reader = BatchReader(
            factories.build_data(self.config.data),
            rank=0,
            world_size=1,
            global_batch=1,
            micro_batch=1,
            sequence_tokens=self.config.data.sequence_tokens,
        )
        order = DataOrder(reader.samples, self.config.seed, ())
        for step in range(STEPS):
            for batch in reader.micro_batches(step, order):
                self.engine.forward_backward(batch, 1.0 / reader.nominal_tokens, last=True)
            self.engine.set_learning_rate(1e-4)
            self.engine.apply()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.took_s.setdefault(name, []).append(time.perf_counter() - begun)

    def memcpy(self) -> None:
        live = [tensor.detach().numpy() for _, _, tensor in self.engine.live_buffers()]
        with self.timed("memcpy"):
            for target, source in zip(self.scratch, live, strict=True):
                np.copyto(target, source)

    def save(self, step: int) -> CheckpointRef:
        with self.timed("save"):
            meta = self._meta(step)
            self.writer.take(self.engine, generation=1, step=step, meta=meta)
        if not self.writer.wait(_LIMIT_S):
            sys.exit("a save took too long")
        commit(self.store, [self.parts.pop()], meta, parent=None, time_s=time.time())
        return CheckpointRef(1, step)

    def _meta(self, step: int) -> CheckpointMeta:
        return CheckpointMeta(
            step=step,
            applied=step,
            tokens=step,
            data_position=step,
            world_size=1,
            threads=1,
            precision="bf16",
            config_digest="0" * 64,
            optimizer=self.engine.optimizer_scalars(),
            detector=DetectorState().to_json(),
        )

    def deepspeed_save(self, number: int) -> Path:
        folder = self.folder / f"deepspeed-{number}"
        folder.mkdir()
        with self.timed("deepspeed save"):
            self.engine._engine.save_checkpoint(str(folder), tag="measured")  # noqa: SLF001 - the call to compare with
            _sync(folder)
        return folder

    def deepspeed_load(self, folder: Path) -> None:
        with self.timed("deepspeed load"):
            self.engine._engine.load_checkpoint(str(folder), tag="measured")  # noqa: SLF001 - the call to compare with

    def restore(self, ref: CheckpointRef, *, vault: bool) -> None:
        def images(wanted: CheckpointRef) -> Iterator[object]:
            return images_in_vault(self.keeper.folder, wanted, lambda place, error: sys.exit(f"{place}: {error}"))

        nearby = Nearby(images, lambda image, error: sys.exit(f"{image.where}: {error}")) if vault else Nearby()  # type: ignore[arg-type]
        name, place = ("vault restore", VAULT) if vault else ("store restore", STORE)
        with self.timed(name):
            found = restore(self.engine, self.store, ref, rules=(), patience_s=0.0, nearby=nearby)
        if not isinstance(found, Restored) or list(found.bytes_from) != [place]:
            sys.exit(f"not restored from the {place}: {found}")

    def close(self) -> None:
        self.writer.close(_LIMIT_S)
        self.keeper.end()
        self.engine.destroy()


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def measure(*, small: bool) -> dict[str, float]:
    """Seconds of each, medians; bytes of the state."""
    overrides = ["drill.faults=[]", "drill.twin_step=null", "train.global_batch=1", "train.micro_batch=1"]
    overrides += ["data.sequence_tokens=64", *([] if small else _LARGE)]
    config = load_config(QUICKSTART, overrides=overrides, environ={})
    build_extensions(extension_folder(Home.here()), notify=lambda text: print(text, file=sys.stderr))
    torch.set_num_threads(1)
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    worlds.form(World(1, 0, 1, "127.0.0.1", int(meeting.port)), local_rank=0, device=CPU, timeout_s=60.0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(config, Path(folder))
        bench.train()
        _rounds(bench)
        bench.close()
    worlds.leave()
    medians = {name: statistics.median(took) for name, took in bench.took_s.items()}
    return {**medians, "bytes": bench.state_bytes, "parameters": bench.state_bytes / 12}


def _rounds(bench: Bench) -> None:
    works: list[Callable[[int], object]] = [
        lambda _number: bench.memcpy(),
        lambda number: bench.restore(bench.save(number), vault=True),
        lambda number: bench.deepspeed_load(bench.deepspeed_save(number)),
        lambda _number: bench.restore(KEYFRAME, vault=False),
    ]
    for number in range(ROUNDS + 1):
        for work in works:
            work(number)
        if number == 0:
            bench.took_s.clear()  # the first round warms caches and page tables of all alike


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with redirect_stdout(sys.stderr):
        found = measure(small=options.small)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
