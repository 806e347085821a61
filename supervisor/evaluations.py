"""Which evaluation of the present line was the best; pure."""

from __future__ import annotations

import math

from stormsail.platform.checkpoint.lines import live_refs
from stormsail.platform.messages import CheckpointRef
from stormsail.supervisor.record import Evaluated, Record


def best_evaluation(record: Record) -> Evaluated | None:
    """The lowest evaluation on the live line, the oldest of equal ones; None where nothing was evaluated.

    Raises:
        CheckpointError: The generations do not form a line.
    """
    live = live_refs(record.generations, record.evaluations)
    on_line = [found for found in record.evaluations if CheckpointRef(found.generation, found.step) in live]
    return min(on_line, key=lambda found: (found.loss, found.step), default=None)


def is_lowest(loss: float | None, record: Record) -> bool:
    """Whether a new loss is below all that the live line has seen before; one that is None, not finite, never is."""
    before = best_evaluation(record)
    return loss is not None and loss < (math.inf if before is None else before.loss)
