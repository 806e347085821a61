"""Worlds of any size, one after another, with real ZeRO-3 engines: each restores, trains, and saves.

    python -m tests.support.reshaping PLAN FOLDER

One process imports everything and forks the ranks of each world, so that a world costs its engines and not its imports.
The plan is JSON: a list of worlds, each with `ranks`, `generation`, `restore` (generation and step, or null), `steps`
and whether it saves `differences`. Each rank writes `FOLDER/GENERATION-RANK.json`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from tests.support.differences import always
from tests.support.one_rank import BATCH, CPU, SEQUENCE, VOCAB, digest_of, tiny_config
from torch._C._distributed_c10d import TCPStore

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import rank_share
from stormsail.platform.messages import CheckpointRef, World
from stormsail.platform.storage.local import LocalStore
from stormsail.workers import vitals
from stormsail.workers import world as worlds
from stormsail.workers.deltas import deltas_for
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.restore import Restored, restore

GLOBAL_BATCH = 12  # what 1, 2, 3 and 4 ranks share alike


class Rank:
    """One rank of one world."""

    def __init__(self, config: RunConfig, asked: dict[str, Any], rank: int, store: LocalStore) -> None:
        self.config = config
        self.asked = asked
        self.rank = rank
        self.ranks = int(asked["ranks"])
        self.generation = int(asked["generation"])
        self.store = store
        self.engine = ZeroEngine(config, precision="bf16", rank=rank, world_size=self.ranks, device=CPU)
        self.deltas = deltas_for(config, store, self.ranks, lambda *_: None, worth=always)

    def run(self) -> dict[str, Any]:
        """Restore, tell the state, train, and save after every second step."""
        asked = self.asked["restore"]
        step = 0
        if asked is not None:
            found = restore(self.engine, self.store, CheckpointRef(*asked), rules=(), patience_s=0.0)
            assert isinstance(found, Restored), found
            step = found.meta.step
        told: dict[str, Any] = {
            "step": step,
            "root": self._root().hex,
            "scalars": self.engine.optimizer_scalars(),
            "empty": sum(piece.count == 0 for piece in self.engine.pieces),
            "losses": [],
            "saved": [],
        }
        for number in range(step, step + int(self.asked["steps"])):
            told["losses"].append(self._train(number))
            if (number + 1 - step) % 2 == 0:
                told["saved"].append(self._save(number + 1))
        return told

    def _root(self) -> Digest:
        return sum(vitals.gather_objects(digest_of(self.engine.copy_state())), Digest())

    def _train(self, step: int) -> float:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, VOCAB, (GLOBAL_BATCH, SEQUENCE + 1), generator=generator)
        shares = rank_share(
            torch.arange(GLOBAL_BATCH).numpy(), rank=self.rank, world_size=self.ranks, micro_batch=BATCH
        )
        total = 0.0
        for place, share in enumerate(shares):
            mine = tokens[torch.from_numpy(share.clip(min=0))]
            mask = torch.from_numpy(share >= 0).float()[:, None].expand(-1, SEQUENCE)
            batch = mine[:, :-1].contiguous(), mine[:, 1:].contiguous(), mask
            scale = self.ranks / (GLOBAL_BATCH * SEQUENCE)
            total += self.engine.forward_backward(batch, scale, last=place + 1 == len(shares))
        self.engine.set_learning_rate(1e-2)
        assert self.engine.apply()
        return sum(vitals.gather_objects(total)) / (GLOBAL_BATCH * SEQUENCE)

    def _save(self, step: int) -> dict[str, Any]:
        ref = CheckpointRef(self.generation, step)
        shards = self.engine.copy_state()
        assert self.deltas is not None
        scheduled = self.deltas.plan(ref)
        part = write_part(
            self.store,
            generation=ref.generation,
            step=step,
            rank=self.rank,
            world_size=self.ranks,
            shards=shards,
            cancelled=lambda: False,
            base=self.deltas.base_for(ref, scheduled),
        )
        self.deltas.wrote(part, shards, scheduled)
        parts = vitals.gather_objects(part)
        if self.rank == 0:
            commit(self.store, parts, self._meta(step), parent=None, time_s=1.0)
        vitals.gather_objects(None)
        base = load_manifest(self.store, ref).base
        return {"step": step, "root": self._root().hex, "base": None if base is None else dataclasses.astuple(base)}

    def _meta(self, step: int) -> CheckpointMeta:
        return CheckpointMeta(
            step=step,
            applied=step,
            tokens=step * GLOBAL_BATCH * SEQUENCE,
            data_position=step * GLOBAL_BATCH,
            world_size=self.ranks,
            threads=1,
            precision="bf16",
            config_digest="c" * 64,
            optimizer=self.engine.optimizer_scalars(),
            detector=DetectorState().to_json(),
        )


def play(asked: dict[str, Any], folder: Path) -> None:
    """One world, its ranks forked from this process; ends when all have ended.

    Raises:
        RuntimeError: A rank failed.
    """
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
    config = tiny_config(
        train={"steps": 100, "global_batch": GLOBAL_BATCH, "micro_batch": BATCH},
        checkpoint={"every_steps": 2, "deltas": True, "deadline_s": 30.0},
    )
    children = []
    for rank in range(int(asked["ranks"])):
        child = os.fork()
        if child == 0:
            _be_a_rank(
                config, asked, World(int(asked["generation"]), rank, asked["ranks"], "127.0.0.1", meeting.port), folder
            )
        children.append(child)
    if any(os.waitpid(child, 0)[1] != 0 for child in children):
        raise RuntimeError(f"a rank of {asked} failed")


def _be_a_rank(config: RunConfig, asked: dict[str, Any], world: World, folder: Path) -> None:
    try:
        torch.set_num_threads(1)
        worlds.form(world, local_rank=world.rank, device=CPU, timeout_s=300.0)
        told = Rank(config, asked, world.rank, LocalStore(folder / "run")).run()
        (folder / f"{world.generation}-{world.rank}.json").write_text(json.dumps(told))
        worlds.leave()
    except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Play the plan's worlds in turn."""
    warnings.simplefilter("ignore")  # DeepSpeed's own
    plan, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    import deepspeed  # noqa: F401 - for the ranks, before they are forked

    ensure_format(LocalStore(folder / "run"))
    for asked in plan:
        play(asked, folder)


if __name__ == "__main__":
    main()
