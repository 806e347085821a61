"""The ladder's view of the run's checkpoints, from the record (pure)."""

from __future__ import annotations

from stormsail.platform.checkpoint.lines import live_refs
from stormsail.supervisor.candidates import CandidateCheckpoint
from stormsail.supervisor.record import Record


def live_candidates(record: Record) -> list[CandidateCheckpoint]:
    """Committed checkpoints of the live line that hold finite numbers and have not failed verification, oldest first."""
    usable = [commit.ref for commit in record.commits if commit.finite and commit.ref not in record.corrupt]
    live = live_refs(record.generations, usable)
    return [
        CandidateCheckpoint(ref, ref in record.good)
        for ref in sorted(live, key=lambda item: (item.step, item.generation))
    ]
