"""One machine for all cluster tests: its host process, Ray and store start once, and runs that tests only read are shared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.machine import Config, Machine

from stormsail.platform.data.tokens import write_shards
from stormsail.supervisor.reading import ReadRun

STEPS = 70
MODULES = Path(__file__).parent / "modules"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A model so small that a step takes some 20 ms, and data that are quickly read."""
    shards = tmp_path_factory.mktemp("data") / "shards"
    text = np.frombuffer(b"a quick brown fox jumps over the lazy dog; " * 3000, dtype=np.uint8)
    write_shards(shards, [text], vocab_size=256, shard_tokens=len(text), source="a sentence")
    return {
        "seed": 11,
        "train": {"steps": STEPS, "global_batch": 4, "micro_batch": 2},
        "model": {"args": {"vocab_size": 256, "d_model": 32, "layers": 2, "heads": 2}},
        "data": {"factory": "builtin:tokens", "args": {"path": str(shards)}, "sequence_tokens": 32},
        "optimizer": {"lr": 3e-3},
        "schedule": {"warmup_steps": 5},
        "checkpoint": {"every_steps": 10, "good_after_steps": 2},
        "tracking": {"uri": None},
    }


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory, built_extensions: Path, base: Config) -> Iterator[Machine]:
    """The machine; everything on it ends with the session."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("work")
    (home / "extensions").symlink_to(built_extensions.parent, target_is_directory=True)
    for module in MODULES.glob("*.py"):
        shutil.copy(module, folder)
    made = Machine(home, folder, base)
    yield made
    made.run("down", "--force")


@pytest.fixture(scope="session")
def straight(machine: Machine) -> ReadRun:
    """A run that nothing disturbed, as it stood when it was finished. Others may have extended it since."""
    machine.run("train", machine.write("straight"))
    return machine.read("straight")
