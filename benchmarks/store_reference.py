"""Restoring from a real S3 server, ours and DeepSpeed's files, into one engine in turns; one JSON object at the end.

    benchmarks/store_reference.py [--small]

DeepSpeed's files are fetched with boto3's own parallel download to a new folder, then loaded from there. The server
is the embedded one, on this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from one_engine import config_for, load, meta_for, one_engine
from training_state import LARGE, Recipe, states

from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.embedded import BUCKET, EmbeddedServer
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.s3_client import ClientSource
from stormsail.platform.storage.store import ObjectStore, StoreAddress
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.restore import Restored, restore

ROUNDS = 3
KEYFRAME, DIFFERENCE = CheckpointRef(1, 20), CheckpointRef(1, 30)
ROUNDED_KEYFRAME, ROUNDED = CheckpointRef(2, 20), CheckpointRef(2, 30)
_THEIRS = "deepspeed"


class Bench:
    """An engine, a store with all kinds of checkpoint, and what restoring took."""

    def __init__(self, engine: ZeroEngine, address: StoreAddress, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.store: ObjectStore = open_store(address.child("run"))
        self.client = ClientSource.of(address).get()
        self.took_s: dict[str, list[float]] = {}
        self.names: list[str] = []

    def save(self, ref: CheckpointRef, base: Keyframe | None = None) -> Keyframe | None:
        """Write the engine's state; gives what the next one can build on."""
        shards = self.engine.copy_state()
        part = write_part(
            self.store,
            generation=ref.generation,
            step=ref.step,
            rank=0,
            world_size=1,
            shards=shards,
            cancelled=lambda: False,
            base=base,
        )
        commit(self.store, [part], meta_for(self.engine, ref.step), parent=None, time_s=time.time())
        return Keyframe(part, shards) if base is None else None

    def save_theirs(self) -> None:
        """DeepSpeed's own checkpoint, put on the same store."""
        folder = self.folder / "saved"
        folder.mkdir()
        self.engine._engine.save_checkpoint(str(folder), tag="measured")  # noqa: SLF001 - the call to compare with
        self.names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        for name in self.names:
            self.client.upload_file(str(folder / name), BUCKET, f"{_THEIRS}/{name}")

    def restore(self, ref: CheckpointRef) -> None:
        """Ours, verified and written into the engine."""
        found = restore(self.engine, self.store, ref, rules=(), patience_s=0.0)
        if not isinstance(found, Restored):
            sys.exit(f"not restored: {found}")

    def restore_theirs(self, folder: Path) -> None:
        """DeepSpeed's: every file fetched to an empty folder, then loaded."""
        for name in self.names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self.client.download_file(BUCKET, f"{_THEIRS}/{name}", str(target))
        self.engine._engine.load_checkpoint(str(folder), tag="measured")  # noqa: SLF001 - the call to compare with

    def rounds(self) -> None:
        """All in turns; the first round warms caches of all alike. Making and removing a folder is nobody's time."""
        works: dict[str, Callable[[Path], None]] = {
            "keyframe": lambda _folder: self.restore(KEYFRAME),
            "difference": lambda _folder: self.restore(DIFFERENCE),
            "rounded": lambda _folder: self.restore(ROUNDED),
            "deepspeed": self.restore_theirs,
        }
        for number in range(ROUNDS + 1):
            for name, work in works.items():
                with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                    begun = time.perf_counter()
                    work(Path(folder))
                    took_s = time.perf_counter() - begun
                if number:
                    self.took_s.setdefault(name, []).append(took_s)


def measure(*, small: bool) -> dict[str, float]:
    """Seconds of each, medians."""
    recipe = Recipe() if small else LARGE
    found = states(recipe)
    with tempfile.TemporaryDirectory() as name, one_engine(config_for(recipe)) as engine:
        folder = Path(name)
        server = EmbeddedServer(folder / "server", folder / "keys.json")
        try:
            bench = Bench(engine, server.start(), folder)
            ensure_format(bench.store)
            for keyframe, at, difference, later in (
                (ROUNDED_KEYFRAME, found.rounded, ROUNDED, found.rounded_later),
                (KEYFRAME, found.keyframe, DIFFERENCE, found.later),
            ):
                load(engine, found, at)
                base = bench.save(keyframe)
                load(engine, found, later)
                bench.save(difference, base)
            bench.save_theirs()
            bench.rounds()
        finally:
            server.stop()
    return {**{name: statistics.median(took) for name, took in bench.took_s.items()}, "parameters": found.parameters}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with redirect_stdout(sys.stderr):
        found = measure(small=options.small)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
