"""Bytes per parameter that the gradient log takes in one step, beside the raw state and the raw bf16 gradient."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from checkpoint_rows.row import Row, make_row
from training_state import Recipe, States, gradient, states

from stormsail.platform.checkpoint.gradient_frame import Bits, Cut
from stormsail.platform.checkpoint.log_entry import LoggedStep, pack_entry, unpack_entry
from stormsail.platform.checkpoint.packer import grid_of
from stormsail.platform.checkpoint.rounding import to_bf16
from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.messages import StepRow

Shard: TypeAlias = tuple[Bits, tuple[Cut, ...]]

WORLD_SIZE = 2
RAW_STATE_BYTES = 14.0
RAW_GRADIENT_BYTES = 2.0
_ROUNDS = 5
_MB = 1_000_000


def rows(*, small: bool) -> list[Row]:
    """The log of the step after the keyframe, headers included, and the speed of one core; always the quickstart's model."""
    del small
    recipe = Recipe()
    found = states(recipe)
    whole = gradient(found, recipe)
    shards = [_rank_shard(found, whole, rank) for rank in range(WORLD_SIZE)]
    entries = [_entry(recipe.at, rank, shard) for rank, shard in enumerate(shards)]
    for entry, (bits, _) in zip(entries, shards, strict=True):
        if not np.array_equal(unpack_entry(entry, "benchmark")[1], bits):
            sys.exit("a logged gradient came back as something else")
    size = sum(map(len, entries)) / found.parameters
    figure, unit = "gradient log per step", "B/parameter"
    encode = _speed(lambda: _entry(recipe.at, 0, shards[0]), shards[0][0].nbytes)
    decode = _speed(lambda: unpack_entry(entries[0], "benchmark"), shards[0][0].nbytes)
    return [
        make_row(figure, unit, size, RAW_STATE_BYTES, against="raw state", bars=(1.45, 1.38)),
        make_row(figure, unit, size, RAW_GRADIENT_BYTES, against="raw bf16 gradient"),
        make_row("write a log entry", "MB/s of bf16 gradient per core", encode, None, lower=False),
        make_row("read a log entry", "MB/s of bf16 gradient per core", decode, None, lower=False),
    ]


def _rank_shard(found: States, whole: dict[str, np.ndarray], rank: int) -> Shard:
    """One rank's shard: each parameter cut into equal ranges, as ZeRO-3 cuts them."""
    parts, cuts = [], []
    for name, values in whole.items():
        start, stop = (values.size * edge // WORLD_SIZE for edge in (rank, rank + 1))
        parts.append(values[start:stop])
        cuts.append((stop - start, grid_of(ShardSpec(name, "gradient", found.shapes[name], start, stop - start))))
    return to_bf16(np.concatenate(parts).view(np.uint32)), tuple(cuts)


def _entry(step: int, rank: int, shard: Shard) -> bytes:
    bits, cuts = shard
    row = StepRow(1, step, step + 1, 1.5, 1.2, 1.0, 5e-4, 1.0, 1024, 0.5, 1.8e9, "bf16", "applied", batch=2**40)
    seen = {"step": step, "loss": 1.5, "grad_norm": 1.2, "nonfinite_gradients": 0, "tokens": 1024}
    return pack_entry(
        LoggedStep(
            generation=1,
            step=step,
            rank=rank,
            world_size=WORLD_SIZE,
            layout="0" * 32,
            outcome="applied",
            elements=bits.size,
            scale=0.83,
            rates=(5e-4, 5e-4),
            applied=step + 1,
            tokens=step * 1024,
            state_sum=2**63,
            seen=seen,
            row=dataclasses.asdict(row) if rank == 0 else {},
        ),
        bits,
        cuts,
    )


def _speed(work: Callable[[], object], size_bytes: int) -> float:
    """Median over some rounds, in CPU time of this thread."""
    took = []
    for _ in range(_ROUNDS):
        begun = time.thread_time()
        work()
        took.append(time.thread_time() - begun)
    return size_bytes / sorted(took)[_ROUNDS // 2] / _MB
