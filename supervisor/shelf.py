"""A run's checkpoints as a shelf to look at: what is there, on which line, whether good, and whether whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.lines import list_generations, live_refs
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.journal import Journal
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import telling
from stormsail.supervisor.record import fold

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found.

    Attributes:
        checked: Checkpoints read whole.
        problems: One for each damaged or missing object.
    """

    checked: int
    problems: list[dict[str, str]]


def list_shelf(place: RunPlace) -> list[dict[str, Any]]:
    """Every committed checkpoint, oldest first, and every commit that cannot be read."""
    store = place.store()
    record = fold(Journal.read(store))
    scan = scan_commits(store)
    live = live_refs(list_generations(store), scan.commits)
    rows = [
        {
            "generation": commit.generation,
            "step": commit.step,
            "state": _state(commit.ref in live, commit.ref in record.corrupt),
            "good": commit.ref in record.good,
            "bytes": commit.stored_bytes,
            "digest": commit.root,
            "time_s": commit.time_s,
        }
        for commit in sorted(scan.commits, key=lambda item: (item.step, item.generation))
    ]
    return rows + [
        {
            "generation": None,
            "step": None,
            "state": "unreadable",
            "good": False,
            "bytes": 0,
            "digest": problem.key,
            "time_s": 0,
        }
        for problem in scan.problems
    ]


def _state(live: bool, corrupt: bool) -> str:  # noqa: FBT001 - two facts, one word
    if corrupt:
        return "damaged"
    return "live" if live else "superseded"


def render_shelf(rows: list[dict[str, Any]]) -> str:
    """The shelf as a table."""
    if not rows:
        return "no checkpoints"
    head = f"{'checkpoint':>12}  {'state':<11} {'good':<4} {'MB':>8}  {'committed':<9} digest"
    lines = [
        f"{str(row['generation']) + '/' + str(row['step']):>12}  {row['state']:<11} {'yes' if row['good'] else 'no':<4} "
        f"{row['bytes'] / _MB:>8.1f}  {telling.clock(row['time_s']):<9} {row['digest']}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def verify_shelf(place: RunPlace) -> Verified:
    """Read and check every byte of every committed checkpoint."""
    store = place.store()
    scan = scan_commits(store)
    problems = [{"checkpoint": "unreadable", "key": problem.key, "detail": problem.detail} for problem in scan.problems]
    for commit in scan.commits:
        problems += [
            {"checkpoint": f"{commit.generation}/{commit.step}", "key": problem.key, "detail": problem.detail}
            for problem in verify(store, commit)
        ]
    return Verified(len(scan.commits), problems)
