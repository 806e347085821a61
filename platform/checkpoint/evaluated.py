"""Which evaluated state is the lowest: only losses over the same held-out samples compare; pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stormsail.platform.checkpoint.manifest import Commit
from stormsail.platform.messages import CheckpointRef


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A state that was evaluated, on any line.

    Attributes:
        generation: Generation that came to it.
        step: Global batches consumed.
        loss: On held-out samples, in nats; one that is not finite is never the lowest.
        eval_set: Digest of which samples it is over.
    """

    generation: int
    step: int
    loss: float
    eval_set: str = ""

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint that it is, if it was saved."""
        return CheckpointRef(self.generation, self.step)


def evaluated_in(data: Mapping[str, Any], step: int | None) -> Evaluated | None:
    """What an event `evaluation.finished` tells; None where its loss is not finite."""
    if data["loss"] is None:
        return None
    return Evaluated(int(data["generation"]), step or 0, float(data["loss"]), str(data["eval_set"]))


def evaluated_commits(commits: Iterable[Commit]) -> list[Evaluated]:
    """Those of the commits whose state was evaluated."""
    return [
        Evaluated(commit.generation, commit.step, commit.eval_loss, commit.eval_set or "")
        for commit in commits
        if commit.eval_loss is not None
    ]


def lowest_so_far(on_line: Iterable[Evaluated]) -> Iterator[tuple[Evaluated, Evaluated]]:
    """Each one with a finite loss, and the lowest until then over the same samples: the older of two equal ones.

    Args:
        on_line: Those of one line, in any order.
    """
    lowest: dict[str, Evaluated] = {}
    for found in sorted(on_line, key=lambda item: (item.step, item.generation)):
        if math.isfinite(found.loss):
            before = lowest.get(found.eval_set, found)
            lowest[found.eval_set] = found if found.loss < before.loss else before
            yield found, lowest[found.eval_set]


def lowest(on_line: Iterable[Evaluated]) -> Evaluated | None:
    """The lowest one over the samples that the newest one is over; None where no loss is finite.

    Args:
        on_line: Those of one line, in any order.
    """
    return next((best for _, best in reversed(list(lowest_so_far(on_line)))), None)


def best_of(evaluated: Iterable[Evaluated], refs: Collection[CheckpointRef]) -> CheckpointRef | None:
    """The `lowest` among some checkpoints of one line; None where none of them has a finite loss."""
    best = lowest(found for found in evaluated if found.ref in refs)
    return None if best is None else best.ref
