"""Joining the process group that the supervisor formed, and leaving it for the next one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.support.one_rank import CPU, build, tiny_config, train, world_of_one
from torch._C._distributed_c10d import HashStore

from stormsail.platform.errors import ClusterError, InternalError
from stormsail.platform.home import Home
from stormsail.platform.messages import World
from stormsail.workers import world as module

pytestmark = pytest.mark.filterwarnings("ignore")  # DeepSpeed's own


def test_one_process_is_in_one_world_after_the_other(built_extensions: Path, tmp_path: Path) -> None:
    losses = []
    for generation in (1, 2):
        with world_of_one(tmp_path, built_extensions, generation=generation):
            assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
            engine = build(tiny_config())
            losses.append(train(engine, range(2)))
            engine.destroy()
        assert not dist.is_initialized()
    assert losses[0] == losses[1]


def test_deepspeed_is_told_rank_and_size_by_the_environment(built_extensions: Path, tmp_path: Path) -> None:
    with world_of_one(tmp_path, built_extensions):
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("0", "1", "0")
        assert float(torch.ones(1).sum()) == 1.0


def test_without_extensions_nobody_joins_and_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    with pytest.raises(ClusterError, match="not built"):
        module.form(World(1, 0, 1, "127.0.0.1", 9), local_rank=0, device=CPU, timeout_s=1.0)
    assert not Home(tmp_path).extensions.exists()
    assert not dist.is_initialized()


def test_leaving_without_having_joined_is_no_error() -> None:
    module.leave()


class TestComingTogether:
    def test_all_are_there_in_the_end_whoever_comes_first(self) -> None:
        store = HashStore()
        with ThreadPoolExecutor(3) as pool:
            found = [pool.submit(module.arrive, store, "here", 3, limit_s=30.0) for _ in range(3)]
            assert [one.result() for one in found] == [True, True, True]

    def test_who_is_elsewhere_is_not_waited_for_beyond_the_limit(self) -> None:
        store = HashStore()
        module.arrive(store, "elsewhere", 1, limit_s=0.0)
        assert not module.arrive(store, "here", 2, limit_s=0.1)

    def test_nobody_meets_before_there_is_a_world(self) -> None:
        with pytest.raises(InternalError, match="before their world"):
            module.all_come_here("here", limit_s=1.0)
