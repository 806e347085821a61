"""Which checkpoints there are: read from the commit objects, ordered by the step in their bodies, never by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from stormsail.platform.checkpoint.keys import COMMITS, commit_key, fold_key, fold_manifest_key, manifest_key
from stormsail.platform.checkpoint.manifest import Commit, Fold, Manifest, unpack_manifest
from stormsail.platform.checkpoint.records import read_twice, unseal
from stormsail.platform.errors import CheckpointError, ObjectMissingError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong on the store.

    Attributes:
        key: The object.
        kind: `missing`, `damaged` or `incomplete`.
        detail: What was expected and what was found.
    """

    key: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.key}: {self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class CommitScan:
    """All commits of a run.

    Attributes:
        commits: Those that can be read, oldest step first (of equal steps the older generation first).
        problems: Commit objects that cannot; the others are no worse for it.
    """

    commits: tuple[Commit, ...]
    problems: tuple[Problem, ...]


def scan_commits(store: ObjectStore) -> CommitScan:
    """Read every commit object.

    Raises:
        StorageError: The store could not be listed or read; never reported as "none".
    """
    commits: list[Commit] = []
    problems: list[Problem] = []
    for info in store.list(COMMITS):
        try:
            commits.append(_read_commit(store, info.key))
        except ObjectMissingError:
            continue  # deleted by retention between the list and the get: it is no checkpoint any more
        except CheckpointError as error:
            problems.append(Problem(info.key, "damaged", error.what))
    commits.sort(key=lambda commit: (commit.step, commit.generation))
    return CommitScan(tuple(commits), tuple(problems))


def load_commit(store: ObjectStore, ref: CheckpointRef) -> Commit:
    """The commit of one checkpoint.

    Raises:
        CheckpointError: There is none, or it is damaged.
        StorageError: The store failed.
    """
    key = commit_key(ref)
    try:
        return _read_commit(store, key)
    except ObjectMissingError as error:
        raise CheckpointError(
            f"there is no checkpoint of step {ref.step} from generation {ref.generation}",
            where=key,
            todo="`stormsail checkpoints ls` shows those that there are",
            objects=(key,),
        ) from error


def load_manifest(store: ObjectStore, ref: CheckpointRef | Commit) -> Manifest:
    """The manifest to read a committed checkpoint by: of two, the one that needs no keyframe.

    Raises:
        CheckpointError: No such checkpoint, or commit or manifest are missing or damaged.
        StorageError: The store failed.
    """
    record = load_commit(store, ref) if isinstance(ref, CheckpointRef) else ref
    if record.base is None:
        return load_original(store, record)
    try:
        folded = load_folded(store, record)
    except CheckpointError as error:
        try:
            return load_original(store, record)
        except CheckpointError:
            raise error from None
    return folded if folded is not None else load_original(store, record)


def load_original(store: ObjectStore, record: Commit) -> Manifest:
    """The manifest that was committed, checked against its commit and for completeness.

    Raises:
        CheckpointError: It is missing or damaged.
        StorageError: The store failed.
    """
    key = manifest_key(record.ref)
    manifest = unpack_manifest(read_twice(lambda: _read_manifest(store, key, record.manifest_sha256)), key)
    if manifest.folded or (manifest.ref, manifest.root, manifest.base) != (record.ref, record.root, record.base):
        raise CheckpointError("the manifest is not the one of its commit", where=key, objects=(key,))
    manifest.check_complete()
    return manifest


def load_folded(store: ObjectStore, record: Commit) -> Manifest | None:
    """The manifest of the checkpoint as it was written once more, whole in itself; None if it never was.

    Raises:
        CheckpointError: It is damaged, or its manifest is missing.
        StorageError: The store failed.
    """
    where = fold_key(record.ref)
    try:
        fold = read_twice(lambda: unseal(store.get(where), Fold, where))
    except ObjectMissingError:
        return None
    if (fold.ref, fold.root) != (record.ref, record.root):
        raise CheckpointError("it is the fold of another state", where=where, objects=(where,))
    key = fold_manifest_key(record.ref)
    manifest = unpack_manifest(read_twice(lambda: _read_manifest(store, key, fold.manifest_sha256)), key)
    if not manifest.folded or (manifest.ref, manifest.root) != (record.ref, record.root):
        raise CheckpointError("the manifest is not the one of its fold", where=key, objects=(key,))
    manifest.check_complete()
    return manifest


def _read_manifest(store: ObjectStore, key: str, expected: str) -> bytes:
    try:
        body = store.get(key)
    except ObjectMissingError as error:
        raise CheckpointError("the manifest is missing", where=key, objects=(key,)) from error
    found = hashlib.sha256(body).hexdigest()
    if found != expected:
        raise CheckpointError(
            f"the manifest is damaged: SHA-256 is {found}, expected {expected}", where=key, objects=(key,)
        )
    return body


def _read_commit(store: ObjectStore, key: str) -> Commit:
    record = read_twice(lambda: unseal(store.get(key), Commit, key))
    if commit_key(record.ref) != key:
        raise CheckpointError(
            f"the object says that it is step {record.step} of generation {record.generation}",
            where=key,
            objects=(key,),
        )
    return record
