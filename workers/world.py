"""The process group of one generation: formed where the supervisor says, left without waiting for the dead."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # where torch.distributed has them from

from stormsail.platform.errors import InternalError, WorkerFaultError
from stormsail.platform.home import Home
from stormsail.platform.messages import World
from stormsail.workers import deepspeed_private, lean_imports
from stormsail.workers.extensions import extension_folder, load_extensions

_POLL_S = 0.05
_meeting: Store | None = None


def form(world: World, *, local_rank: int, device: torch.device, timeout_s: float) -> None:
    """Join the world's process group at its store, which lives outside the ranks.

    Args:
        world: Rank, size, generation and the store's address.
        local_rank: Index of this process among those of its node; DeepSpeed reads it from the environment.
        device: Decides the backend: NCCL on GPUs, gloo on CPUs.
        timeout_s: Limit of one collective, and of the meeting itself.
    """
    lean_imports.import_deepspeed()
    import deepspeed

    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.world_size), LOCAL_RANK=str(local_rank))
    load_extensions(extension_folder(Home.here()))
    global _meeting  # noqa: PLW0603 - like torch's own group, there is one in a process
    limit = timedelta(seconds=timeout_s)
    try:
        meeting = TCPStore(world.store_host, world.store_port, is_master=False, timeout=limit, wait_for_workers=False)
    except RuntimeError as error:
        raise WorkerFaultError(
            f"the world's meeting point cannot be reached: {error}", where=f"{world.store_host}:{world.store_port}"
        ) from error
    # The generation in the key space keeps a late rank of an older world out of this one.
    _meeting = PrefixStore(f"generation-{world.generation}", meeting)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=_meeting,
        rank=world.rank,
        world_size=world.world_size,
        timeout=limit,
    )
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)


def all_come_here(place: str, *, limit_s: float) -> bool:
    """Whether every rank calls this with the same place within the limit.

    No collective: for where some ranks may be on their way through one, so that another would be taken for it.

    Args:
        place: Named by all ranks alike, and used once.
        limit_s: How long to wait for the others, in seconds.
    """
    if _meeting is None:
        raise InternalError("ranks cannot meet before their world is formed")
    return arrive(_meeting, place, dist.get_world_size(), limit_s=limit_s)


def arrive(store: Store, place: str, count: int, *, limit_s: float) -> bool:
    """Count oneself in at a place, and tell whether so many are there within the limit."""
    key = f"arrived/{place}"
    deadline = time.monotonic() + limit_s
    here = store.add(key, 1)
    while here < count and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        here = store.add(key, 0)
    return here >= count


def leave() -> None:
    """Leave the group, whole or broken, and let DeepSpeed forget it."""
    global _meeting  # noqa: PLW0603 - as above
    _meeting = None
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # the group of a dead peer cannot be shut down in good order
            dist.destroy_process_group()
    deepspeed_private.forget_process_group()
