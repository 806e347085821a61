"""Evaluation: the loss of the present state on held-out samples, by all ranks together, without a trace in training.

It draws nothing that training draws (each step seeds anew), keeps no gradient, and leaves modes and buffers of the
model as they were. Each rank runs equally many forward passes, because under ZeRO-3 each of them is a collective;
places without a sample are padding. What the ranks found meets in one collective at the end.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import Ids, rank_share
from stormsail.platform.data.source import DataSource
from stormsail.platform.errors import ConfigError
from stormsail.platform.messages import World
from stormsail.workers.batches import collate
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.seeding import seed_all


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one evaluation found; the same on all ranks.

    Attributes:
        loss: Mean over the real tokens, in nats; None where it is not finite, or there was no real token.
        eval_set: Digest of which samples that is over; losses over others do not compare.
        samples: Samples that it is over.
        tokens: Real tokens in them.
        unsaved: The model's buffers that training has changed and no checkpoint holds, in words; "" for none. After a restart the
            same weights may then give another loss.
        took_s: Seconds, on this rank.
    """

    loss: float | None
    eval_set: str
    samples: int
    tokens: int
    unsaved: str
    took_s: float


class Evaluator:
    """Evaluates a run's states, always on the same samples.

    Args:
        config: The run.
        source: What is held out.
        world: The ranks that share the work.
        device: Where the ranks' results meet.
    """

    def __init__(self, config: RunConfig, source: DataSource, world: World, *, device: torch.device) -> None:
        self._config = config
        self._source = source
        self._device = device
        self._ids = evaluated_ids(source.samples(), config.eval.samples)
        self._shares = rank_share(
            self._ids, rank=world.rank, world_size=world.world_size, micro_batch=config.train.micro_batch
        )
        self._set = eval_set(source.digest, self._ids)
        self._agreed = False

    def is_due(self, step: int) -> bool:
        """Whether the state after so many steps is evaluated."""
        return self._config.eval.is_due(step, last=self._config.train.steps)

    def evaluate(self, engine: ZeroEngine) -> Evaluation:
        """Evaluate the engine's present state (collective).

        Raises:
            ConfigError: Ranks hold out different samples, or the best state is to be kept of a model whose buffers are in no
                checkpoint and have changed; all ranks raise.
            UserCodeError: The user's model or data failed.
        """
        begun = time.perf_counter()
        self._agree()
        changed = engine.changed_buffers()
        seed_all(self._config.seed)  # a model that draws in evaluation draws the same each time
        total, tokens = 0.0, 0
        for ids in self._shares:
            batch = collate(self._source, ids, self._config.data.sequence_tokens)
            # Not a product with the mask: a model may give NaN where there is no sample.
            total += float(torch.where(batch[2] > 0, engine.losses(batch), 0.0).double().sum())
            tokens += int(batch[2].sum())
        table = self._together(int(np.float64(total).view(np.int64)), tokens, bool(changed))
        sums, counts = table[:, 0].copy().view(np.float64).tolist(), table[:, 1].tolist()
        if self._config.checkpoint.keep_best and table[:, 2].any():
            raise _not_in_checkpoints(changed)
        took_s = time.perf_counter() - begun
        return Evaluation(mean_loss(sums, counts), self._set, len(self._ids), sum(counts), _few(changed), took_s)

    def _agree(self) -> None:
        """Make sure, once, that all ranks evaluate the same samples: or else they would not run equally many passes."""
        if self._agreed:
            return
        if len(set(self._together(int(self._set[:15], 16))[:, 0].tolist())) > 1:
            raise ConfigError(
                "ranks hold out different samples, so that their losses do not make one",
                where="data",
                todo="put the same data on every node",
            )
        self._agreed = True

    def _together(self, *mine: int) -> NDArray[np.int64]:
        """What every rank has, a row each, on all ranks (collective)."""
        row = torch.tensor(mine, dtype=torch.int64, device=self._device)
        rows = torch.empty(dist.get_world_size() * row.numel(), dtype=torch.int64, device=self._device)
        dist.all_gather_into_tensor(rows, row)
        return rows.cpu().numpy().reshape(-1, row.numel())


def _not_in_checkpoints(changed: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"training changes {_few(changed) or 'buffers on another rank'}, which no checkpoint holds: "
        "what is saved as the best state would not give the same loss again",
        where="checkpoint.keep_best",
        todo="use layers without such statistics, register with persistent=False what evaluation does not depend on, "
        "or keep no best one",
    )


def _few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are; "" for none."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the buffer {names[0]}{more}" if names else ""


def mean_loss(sums: Sequence[float], counts: Sequence[int]) -> float | None:
    """The mean over all ranks' tokens; None where it is not finite, or there is no token.

    Args:
        sums: Summed loss of each rank.
        counts: Real tokens of each rank.
    """
    tokens = sum(counts)
    return math.fsum(sums) / tokens if tokens and all(map(math.isfinite, sums)) else None


def eval_set(digest: str, ids: Ids) -> str:
    """Names what is evaluated: 16 hex digits of the held-out samples' digest and of which of them are taken."""
    return hashlib.sha256(digest.encode() + b"\0" + ids.astype("<i8").tobytes()).hexdigest()[:16]


def evaluated_ids(held_out: int, wanted: int | None) -> Ids:
    """Which held-out samples are evaluated: all, or so many spread evenly over them. A pure function of the two.

    Args:
        held_out: How many there are.
        wanted: How many are asked for; None: all. More than there are means all.
    """
    count = held_out if wanted is None else min(wanted, held_out)
    return np.arange(count, dtype=np.int64) * held_out // max(count, 1)
