"""Whether an evaluation is the best one of the present line so far; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormsail.platform.checkpoint.evaluated import evaluated_in, lowest
from stormsail.platform.checkpoint.lines import live_refs
from stormsail.supervisor.record import Record


def is_lowest(fields: Mapping[str, Any], record: Record) -> bool:
    """Whether a new one is below all that the live line has seen before over the same samples.

    Args:
        fields: What rank 0 says of it; a loss that is not finite never is.
        record: What was known before.

    Raises:
        CheckpointError: The generations do not form a line.
    """
    found = evaluated_in(fields, fields["step"])
    if found is None:
        return False
    known = [*record.evaluations, found]
    live = live_refs(record.generations, known)
    return lowest(item for item in known if item.ref in live) is found
