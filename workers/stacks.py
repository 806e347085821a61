"""What this process can be asked for from outside while it hangs: its stacks, and its last collectives.

Stacks need neither the GIL nor a thread of ours: a signal makes faulthandler, in C, write them to a file. The flight
recorder is asked from the heartbeat's thread, which runs while the training thread waits in a collective.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

# A real-time signal, because users' code and job schedulers like SIGUSR1 and SIGUSR2.
STACKS_SIGNAL = signal.SIGRTMIN + 7


def stacks_file(log_folder: Path, worker_rank: int) -> Path:
    """Where the worker with this index writes its stacks."""
    return log_folder / f"rank-{worker_rank}.stacks"


def register_stacks(path: Path) -> None:
    """Append the stacks of all threads to `path` whenever `STACKS_SIGNAL` comes; calling it again moves the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A bare descriptor, open for as long as the process lives: a stream could be closed by whoever cleans up.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)


def flight_record() -> str:
    """The last collectives of this process as JSON: number, state, sizes; "" where this torch keeps none.

    PyTorch's flight recorder is a ring in memory, filled with NCCL and with gloo. Its reader has no public name:
    one for NCCL builds, one for all since 2.9.
    """
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    if not (dist.is_available() and dist.is_initialized()):
        return ""
    names = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
    wanted = names if dist.get_backend() == "nccl" else names[1:]
    dump = next((getattr(c10d, name) for name in wanted if hasattr(c10d, name)), None)
    if dump is None:
        return ""
    told: bytes = dump(includeCollectives=True, onlyActive=False)
    return told.decode(errors="replace")
