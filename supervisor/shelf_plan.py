"""What retention would do with a run's checkpoints now, without doing it."""

from __future__ import annotations

from typing import Any

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.evaluated import best_of, evaluated_commits
from stormsail.platform.checkpoint.folding import folded, freed
from stormsail.platform.checkpoint.leases import LeaseWatch
from stormsail.platform.checkpoint.lines import list_generations, live_refs
from stormsail.platform.checkpoint.pins import pins
from stormsail.platform.config.dump import parse_dump
from stormsail.platform.journal import Journal
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.keeping import retention_plan
from stormsail.supervisor.record import fold

_MB = 1_000_000


def plan_shelf(place: RunPlace) -> list[dict[str, Any]]:
    """Every committed checkpoint, oldest first, and whether it would stay.

    Raises:
        CheckpointError: The generations cannot be read.
        StorageError: The store failed.
    """
    store = place.store()
    record = fold(Journal.read(store))
    commits = scan_commits(store).commits
    live = live_refs(list_generations(store), commits)
    without_base, pinned = freed(store, folded(store)), pins(store)
    plan = retention_plan(
        parse_dump(record.config),
        commits,
        good=record.good - record.corrupt,
        live=live,
        pinned=pinned,
        held=LeaseWatch().held(store),
        freed=without_base,
    )
    best = best_of(evaluated_commits(commits), live & (record.good - record.corrupt))
    needed = {commit.base for commit in commits if commit.ref in plan.keep and commit.ref not in without_base}
    return [
        {
            "generation": commit.generation,
            "step": commit.step,
            "keep": commit.ref in plan.keep,
            "live": commit.ref in live,
            "good": commit.ref in record.good,
            "needed": commit.ref in needed,
            "pinned": commit.ref in pinned,
            "best": commit.ref == best,
            "bytes": commit.stored_bytes,
        }
        for commit in commits
    ]


def render_plan(rows: list[dict[str, Any]]) -> str:
    """The plan as a table with a sum."""
    if not rows:
        return "no checkpoints"
    lines = [f"{row['generation']}/{row['step']:<10} {_words(row)}" for row in rows]
    going = [row for row in rows if not row["keep"]]
    freed = sum(row["bytes"] for row in going) / _MB
    return "\n".join([*lines, f"{len(going)} of {len(rows)} would go, {freed:.1f} MB; nothing was deleted"])


def _words(row: dict[str, Any]) -> str:
    facts = [
        "keep  " if row["keep"] else "delete",
        "live" if row["live"] else "superseded",
        *(["good"] if row["good"] else []),
        *(["pinned"] if row["pinned"] else []),
        *(["best of the good ones"] if row["best"] else []),
        *(["others build on it"] if row["needed"] else []),
        f"{row['bytes'] / _MB:.1f} MB",
    ]
    return ", ".join(facts)
