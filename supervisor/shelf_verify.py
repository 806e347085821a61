"""Proving that a run's checkpoints are whole: every byte of every object, and for each damaged one who needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stormsail.platform.checkpoint.commits import Problem, scan_commits
from stormsail.platform.checkpoint.keys import FORMAT_KEY, commit_key, generation_key, owner_of
from stormsail.platform.checkpoint.leases import ReadLease
from stormsail.platform.checkpoint.manifest import Commit
from stormsail.platform.checkpoint.verify import record_problems, verify
from stormsail.platform.errors import ObjectMissingError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.record import fold


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """One object that is not as it was written.

    Attributes:
        key: Its key below the run's root.
        kind: `missing` or `damaged`.
        detail: What was expected and what was found.
        checkpoints: Those that cannot be restored because of it, as `GENERATION/STEP`.
    """

    key: str
    kind: str
    detail: str
    checkpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found.

    Attributes:
        checked: Checkpoints read whole.
        problems: One for each damaged or missing object, by key.
    """

    checked: int
    problems: tuple[DamagedObject, ...]


def verify_shelf(place: RunPlace) -> Verified:
    """Read and check every byte of every committed checkpoint, and the records that they share.

    Raises:
        StorageError: The store failed, so nothing can be said.
    """
    store = place.store()
    scan = scan_commits(store)
    found: dict[str, tuple[Problem, frozenset[CheckpointRef]]] = {}

    def add(problem: Problem, needing: Iterable[CheckpointRef]) -> None:
        refs = frozenset(needing)
        known, others = found.get(problem.key, (problem, frozenset()))
        owned = owner_of(problem.key) in refs  # the checkpoint that it belongs to has the plainest words for it
        found[problem.key] = (problem if owned else known, refs | others)

    for problem in record_problems(store):
        add(problem, _needing_record(problem.key, scan.commits))
    for problem in (*scan.problems, *_lost_commits(store, scan.commits)):
        owner = owner_of(problem.key)
        add(problem, [] if owner is None else [owner, *(item.ref for item in scan.commits if item.base == owner)])
    for commit in scan.commits:
        with ReadLease(store, [commit.ref]):
            problems = verify(store, commit)
        if problems and not _exists(store, commit_key(commit.ref)):
            continue  # retention began to delete it before this looked
        for problem in problems:
            add(problem, [commit.ref])
    damaged = (
        DamagedObject(key, problem.kind, problem.detail, tuple(map(_spoken, sorted(refs, key=_by_step))))
        for key, (problem, refs) in sorted(found.items())
    )
    return Verified(len(scan.commits), tuple(damaged))


def render_verified(found: Verified) -> str:
    """The findings for people."""
    lines = [f"{found.checked} checkpoints verified, {len(found.problems)} damaged or missing objects"]
    for item in found.problems:
        needed = f"needed by {', '.join(item.checkpoints)}" if item.checkpoints else "no checkpoint needs it"
        lines.append(f"  {item.key}: {item.kind}: {item.detail} ({needed})")
    return "\n".join(lines)


def _needing_record(key: str, commits: Iterable[Commit]) -> Iterator[CheckpointRef]:
    return (commit.ref for commit in commits if key in (FORMAT_KEY, generation_key(commit.generation)))


def _lost_commits(store: ObjectStore, commits: Iterable[Commit]) -> list[Problem]:
    """Commits that the journal knows, and that are not there though nobody gave them up."""
    there = {commit.ref for commit in commits}
    lost = _expected(store) - there
    gone = {ref for ref in lost if not _exists(store, commit_key(ref))}
    if gone:  # retention may have deleted them since: it says so first
        gone &= _expected(store)
    return [
        Problem(commit_key(ref), "missing", "the journal says that this checkpoint was committed, and not deleted")
        for ref in sorted(gone, key=_by_step)
    ]


def _expected(store: ObjectStore) -> set[CheckpointRef]:
    return {commit.ref for commit in fold(Journal.read(store)).commits}


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectMissingError:
        return False
    return True


def _by_step(ref: CheckpointRef) -> tuple[int, int]:
    return ref.step, ref.generation


def _spoken(ref: CheckpointRef) -> str:
    return f"{ref.generation}/{ref.step}"
