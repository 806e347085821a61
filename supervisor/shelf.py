"""A run's checkpoints as a shelf to look at: what is there, on which line, whether good, and whether whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.evaluated import best_of, evaluated_commits
from stormsail.platform.checkpoint.folding import folded
from stormsail.platform.checkpoint.keys import LOG, PACKS, PARTS, owner_of
from stormsail.platform.checkpoint.lines import Generation, list_generations, live_refs, newest_first
from stormsail.platform.checkpoint.log_line import Logged, logged, reach
from stormsail.platform.checkpoint.manifest import Commit
from stormsail.platform.checkpoint.pins import pins
from stormsail.platform.checkpoint.retention import standing
from stormsail.platform.errors import CheckpointError, ConfigError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor import telling
from stormsail.supervisor.record import fold

_MB = 1_000_000
_SPOKEN = re.compile(r"(?:(?P<generation>[0-9]{1,9})/)?(?P<step>[0-9]{1,12})")


def list_shelf(place: RunPlace) -> list[dict[str, Any]]:
    """Every committed checkpoint, oldest first; then saves without a commit, and commits that cannot be read."""
    store = place.store()
    record = fold(Journal.read(store))
    scan = scan_commits(store)
    generations = list_generations(store)
    live = live_refs(generations, scan.commits)
    log = logged(info.key for info in store.list(LOG))
    sizes = {commit.ref: commit.stored_bytes for commit in scan.commits}
    folds, pinned = folded(store), pins(store)
    best = best_of(evaluated_commits(scan.commits), standing(live - record.corrupt, record.good))
    rows = [
        {
            "generation": commit.generation,
            "step": commit.step,
            "state": _state(commit.ref in live, commit.ref in record.corrupt),
            "good": commit.ref in record.good,
            "bytes": commit.stored_bytes,
            "base": None if commit.base is None else [commit.base.generation, commit.base.step],
            "saved_bytes": 0 if commit.base not in sizes else sizes[commit.base] - commit.stored_bytes,
            "folded": commit.ref in folds,
            "pinned": commit.ref in pinned,
            "eval_loss": commit.eval_loss,
            "eval_set": commit.eval_set,
            "best": commit.ref == best,
            "digest": commit.root,
            "time_s": commit.time_s,
            "log_to": _log_to(generations, log, commit) if commit.ref in live else None,
        }
        for commit in sorted(scan.commits, key=lambda item: (item.step, item.generation))
    ]
    unreadable = {owner_of(problem.key) for problem in scan.problems}
    incomplete = _uncommitted(store, unreadable | {commit.ref for commit in scan.commits})
    rows += [_without_state(ref.generation, ref.step, "incomplete", "") for ref in incomplete]
    return rows + [_without_state(None, None, "unreadable", problem.key) for problem in scan.problems]


def _log_to(generations: Sequence[Generation], log: Logged, commit: Commit) -> int | None:
    """The step that the gradient log leads to from a checkpoint, or None if it leads nowhere."""
    spans = reach(generations, log, step=commit.step, world_size=commit.world_size).spans
    return spans[-1].stop if spans else None


def _uncommitted(store: ObjectStore, committed: set[CheckpointRef | None]) -> list[CheckpointRef]:
    """Saves of which something was written, but not (or not yet) the commit: they are never restored."""
    written = {owner_of(info.key) for prefix in (PARTS, PACKS) for info in store.list(prefix)}
    found = {ref for ref in written if ref is not None} - committed
    return sorted(found, key=lambda ref: (ref.step, ref.generation))


def _without_state(generation: int | None, step: int | None, state: str, key: str) -> dict[str, Any]:
    return {
        "generation": generation,
        "step": step,
        "state": state,
        "good": False,
        "bytes": 0,
        "base": None,
        "saved_bytes": 0,
        "folded": False,
        "pinned": False,
        "eval_loss": None,
        "eval_set": None,
        "best": False,
        "digest": key,
        "time_s": None,
        "log_to": None,
    }


def _state(live: bool, corrupt: bool) -> str:  # noqa: FBT001 - two facts, one word
    if corrupt:
        return "damaged"
    return "live" if live else "superseded"


def render_shelf(rows: list[dict[str, Any]]) -> str:
    """The shelf as a table."""
    if not rows:
        return "no checkpoints"
    evaluated = any(row["eval_loss"] is not None for row in rows)
    loss = f"{'eval loss':<12} " if evaluated else ""
    head = f"{'checkpoint':>12}  {'state':<11} {'kept':<6} {loss}{'MB':>8}  {'builds on':<14} {'committed':<9} digest"
    reached = [row for row in rows if row["log_to"] is not None]
    log = [f"the gradient log leads from step {row['step']} to step {row['log_to']}" for row in reached[-1:]]
    return "\n".join([head, *(_line(row, evaluated=evaluated) for row in rows), *log])


def _line(row: dict[str, Any], *, evaluated: bool) -> str:
    name = "-" if row["step"] is None else f"{row['generation']}/{row['step']}"
    committed = "-" if row["time_s"] is None else telling.clock(row["time_s"])
    loss = f"{_evaluated(row):<12} " if evaluated else ""
    return (
        f"{name:>12}  {row['state']:<11} {_standing(row):<6} {loss}{row['bytes'] / _MB:>8.1f}  "
        f"{_builds_on(row):<14} {committed:<9} {row['digest']}".rstrip()
    )


def _standing(row: dict[str, Any]) -> str:
    return "pinned" if row["pinned"] else "good" if row["good"] else "-"


def _evaluated(row: dict[str, Any]) -> str:
    if row["eval_loss"] is None:
        return "-"
    return f"{row['eval_loss']:.4f}{' best' if row['best'] else ''}"


def _builds_on(row: dict[str, Any]) -> str:
    """The keyframe, and by how much the difference to it is smaller than it."""
    if row["base"] is None:
        return "-"
    if row["folded"]:
        return "- (folded)"
    generation, step = row["base"]
    keyframe = row["bytes"] + row["saved_bytes"]
    saved = f" {-row['saved_bytes'] / keyframe:+.1%}" if keyframe else ""
    return f"{generation}/{step}{saved}"


def find_ref(place: RunPlace, spoken: str) -> CheckpointRef:
    """The checkpoint that somebody means: `GENERATION/STEP`, `STEP` (on the live line), `newest`, `good`, or `best`.

    Raises:
        ConfigError: These words name no checkpoint.
        CheckpointError: There is no such checkpoint.
        StorageError: The store failed.
    """
    store = place.store()
    commits = scan_commits(store).commits
    wanted = _wanted(place, spoken, newest_first(live_refs(list_generations(store), commits)), commits)
    existing = {commit.ref for commit in commits}
    found = next((ref for ref in wanted if ref in existing), None)
    if found is None and spoken == "best" and not evaluated_commits(commits):
        raise CheckpointError(
            "there is no best checkpoint: no saved state was evaluated, or none had a finite loss",
            where=place.address.url,
            todo="name another one, `newest`, `good` or STEP; a run with eval.every_steps is evaluated",
        )
    if found is None:
        raise CheckpointError(
            f"there is no checkpoint {spoken}",
            where=place.address.url,
            todo="`stormsail checkpoints ls` shows those that there are",
        )
    return found


def _wanted(place: RunPlace, spoken: str, live: list[CheckpointRef], commits: Iterable[Commit]) -> list[CheckpointRef]:
    """What the words may mean, best first."""
    if spoken == "newest":
        return live
    if spoken == "good":
        good = fold(Journal.read(place.store())).good
        return [ref for ref in live if ref in good]
    if spoken == "best":
        record = fold(Journal.read(place.store()))
        best = best_of(evaluated_commits(commits), standing(set(live) - record.corrupt, record.good))
        return [] if best is None else [best]
    match = _SPOKEN.fullmatch(spoken)
    if match is None:
        raise ConfigError(
            f"{spoken!r} names no checkpoint", todo="say STEP, GENERATION/STEP, newest, good, or best", where=place.name
        )
    if match["generation"] is None:
        return [ref for ref in live if ref.step == int(match["step"])]
    return [CheckpointRef(int(match["generation"]), int(match["step"]))]
