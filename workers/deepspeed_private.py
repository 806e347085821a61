"""The private names of DeepSpeed that a second engine in one process needs, in one place.

DeepSpeed assumes one engine and one process group in the life of a process. Stormsail builds several:
FP32 beside bf16 (tier 3), and one for each world. What has to be reset in between was found by running
DeepSpeed 0.19.8; `tests/workers/test_deepspeed_private.py` fails when a version renames any of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_GROUP_NAMES = (
    "_WORLD_GROUP",
    "_ZERO_PARAM_INTRA_PARALLEL_GROUP",
    "_TENSOR_MODEL_PARALLEL_GROUP",
    "_DATA_PARALLEL_GROUP",
    "_ALL_TO_ALL_GROUP",
)
_REDUCE_BUCKET = "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
# What DeepSpeed's backend is asked for in forward, backward and update.
_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_reduce")


class CommClock:
    """Adds up the time that the training thread waits in DeepSpeed's collectives."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> float:
        """The seconds since the last call."""
        taken, self.seconds = self.seconds, 0.0
        return taken

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted, and that of waiting for the handle that it may return."""

        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            handle = function(*args, **kwargs)
            self.seconds += time.perf_counter() - begun
            return handle if handle is None else _TimedHandle(handle, self)

        return call


class _TimedHandle:
    """A collective under way."""

    def __init__(self, handle: Any, clock: CommClock) -> None:
        self._handle = handle
        self._clock = clock

    def wait(self, *args: Any) -> Any:
        begun = time.perf_counter()
        result = self._handle.wait(*args)
        self._clock.seconds += time.perf_counter() - begun
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def time_collectives() -> CommClock:
    """Count the time in the collectives of DeepSpeed's present backend; a second call gives the same clock."""
    import deepspeed.comm.comm as deepspeed_comm

    backend = deepspeed_comm.cdb
    clock: CommClock | None = vars(backend).get("stormsail_clock")
    if clock is None:
        clock = backend.stormsail_clock = CommClock()
        for name in _COLLECTIVES:
            setattr(backend, name, clock.timed(getattr(backend, name)))
    return clock


class OwnGradients:
    """Whether what this rank itself computed was finite, told by one sum over each bucket before ranks reduce it.

    After that the ranks' gradients are mixed, and a NaN no longer tells whose it was.
    """

    def __init__(self, zero: Any) -> None:
        self._zero = zero
        self._reduce: Callable[[torch.dtype], None] = getattr(zero, _REDUCE_BUCKET)
        self._total: torch.Tensor | None = None
        self._seconds = 0.0
        setattr(zero, _REDUCE_BUCKET, self._look_and_reduce)

    def take(self) -> bool:
        """Whether every gradient since the last call was finite."""
        total, self._total = self._total, None
        return total is None or bool(torch.isfinite(total))

    def took_s(self) -> float:
        """Seconds that looking took since the last call; on GPUs those of the host."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _look_and_reduce(self, communication_data_type: torch.dtype) -> None:
        begun = time.perf_counter()
        self._look(communication_data_type)
        self._seconds += time.perf_counter() - begun
        self._reduce(communication_data_type)

    def _look(self, communication_data_type: torch.dtype) -> None:
        from deepspeed.accelerator import get_accelerator

        bucket = self._zero.ipg_buckets[communication_data_type]
        if bucket.params:
            with get_accelerator().stream(self._zero.reduce_and_partition_stream), torch.no_grad():
                # A parameter larger than the bucket is left where it is.
                inside = self._zero.contiguous_gradients and bucket.elements <= self._zero.reduce_bucket_size
                parts = [bucket.buffer[: bucket.elements]] if inside else [p.grad for p in bucket.params]
                for part in parts:
                    found = part.sum().float()
                    self._total = found if self._total is None else self._total + found


def reset_counters() -> None:
    """Start DeepSpeed's parameter and module ids at 0 again, as they must be equal on all ranks of a world."""
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init

    Init.param_id = 0
    # A mutable default argument counts the modules of the whole process.
    DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0  # noqa: SLF001 - this module's purpose


def forget_process_group() -> None:
    """Drop what DeepSpeed remembers of the process group, so that the next world starts clean."""
    import deepspeed.comm.comm as deepspeed_comm
    from deepspeed.utils import groups

    deepspeed_comm.cdb = None
    for name, value in list(vars(groups).items()):
        if name in _GROUP_NAMES or (name.startswith("_") and isinstance(value, dist.ProcessGroup)):
            setattr(groups, name, {} if isinstance(value, dict) else None)


def optimizer_states(engine: Any) -> list[dict[str, Any]]:
    """The wrapped optimizer's state, one dict for each flat fp32 group, created if the engine is fresh."""
    zero = engine.optimizer
    flats = zero.fp32_partitioned_groups_flat
    inner = zero.optimizer
    if any(not inner.state.get(flat) for flat in flats):
        _create_states(zero)
    return [inner.state[flat] for flat in flats]


def flat_sizes(engine: Any) -> list[int]:
    """Elements of each flat fp32 group of this rank, padding included; in the order of `optimizer_states`."""
    return [int(flat.numel()) for flat in engine.optimizer.fp32_partitioned_groups_flat]


def adam_steps(engine: Any) -> int:
    """Updates that an Adam has made; 0 before the first one, or if it is no Adam."""
    zero = engine.optimizer
    states = [zero.optimizer.state.get(flat) or {} for flat in zero.fp32_partitioned_groups_flat]
    if not states or not all({"exp_avg", "exp_avg_sq", "step"} <= state.keys() for state in states):
        return 0
    return int(states[0]["step"])


def loss_scale(engine: Any) -> float:
    """What the loss is multiplied by before backward: 1 where the precision needs none."""
    return float(engine.optimizer.loss_scale)


def refused(engine: Any) -> bool:
    """Whether the optimizer's own check for overflow has refused its last step."""
    return bool(engine.optimizer.overflow)


def _create_states(zero: Any) -> None:
    """Let the optimizer make its own state tensors by a step that cannot move a weight: zero gradients, LR 0."""
    rates = [group["lr"] for group in zero.optimizer.param_groups]
    for group in zero.optimizer.param_groups:
        group["lr"] = 0.0
    for index, flat in enumerate(zero.fp32_partitioned_groups_flat):
        flat.grad = torch.zeros_like(flat)
        zero._optimizer_step(index)  # noqa: SLF001 - this module's purpose
        flat.grad = None
    for group, rate in zip(zero.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for flat in zero.fp32_partitioned_groups_flat:
        for key, value in zero.optimizer.state[flat].items():
            if torch.is_tensor(value):
                value.zero_()
            elif isinstance(value, int | float):
                zero.optimizer.state[flat][key] = type(value)(0)


def refresh_compute_copies(engine: Any) -> None:
    """Bring the small parameters that ZeRO-3 keeps whole (norms, biases) in line with their rewritten shards."""
    kept = engine.optimizer.persistent_parameters
    if kept:
        # `all_gather` alone leaves the stale full copy in place: it must be partitioned away first.
        kept[0].partition(kept)
        kept[0].all_gather(kept)


def offer_gradients(engine: Any) -> None:
    """Let the next step take the gradient partitions as they lie, as it would after a last backward pass."""
    engine.optimizer.independent_gradient_partition_epilogue()  # its buckets are empty, so that nothing is reduced
    engine.set_gradient_accumulation_boundary(True)
