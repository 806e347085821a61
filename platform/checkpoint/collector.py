"""Deleting checkpoints in an order that any crash survives.

The commit goes first: from then on there is no checkpoint, and what is left of it is litter that no reader believes.
Then manifest, parts, packs. Litter is told by its key, which carries generation and step: a pack belongs to the one
checkpoint in its key and to no other, and a manifest that names a foreign pack is refused when it is written or read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stormsail.platform.checkpoint.commits import Problem, load_commit, load_folded, load_original
from stormsail.platform.checkpoint.keys import (
    COMMITS,
    FOLD_MANIFESTS,
    FOLDS,
    MANIFESTS,
    PACKS,
    PARTS,
    commit_key,
    fold_key,
    is_fold_pack,
    owner_of,
    pack_rank,
    part_key,
)
from stormsail.platform.checkpoint.manifest import Manifest
from stormsail.platform.checkpoint.retention import RetentionPlan
from stormsail.platform.errors import CheckpointError, InternalError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did.

    Attributes:
        deleted: Keys of the deleted objects, in order.
        freed_bytes: Bytes of the deleted packs.
        problems: Checkpoints whose manifest could not be read: their commits are gone, their packs are left to
            `collect_litter`.
    """

    deleted: tuple[str, ...]
    freed_bytes: int
    problems: tuple[Problem, ...] = ()


def collect(store: ObjectStore, plan: RetentionPlan) -> Collected:
    """Delete the checkpoints that a plan gives up, oldest first. Safe to repeat after a crash.

    Raises:
        InternalError: The plan keeps and deletes the same checkpoint.
        StorageError: The store failed; whatever is committed is still whole.
    """
    if set(plan.keep) & set(plan.delete):
        raise InternalError(f"a plan keeps and deletes {sorted(map(str, set(plan.keep) & set(plan.delete)))}")
    bin_ = _Bin(store)
    problems: list[Problem] = []
    for ref in plan.delete:
        manifests, found = _manifests_of(store, ref)
        problems += found
        _delete_checkpoint(bin_, ref, manifests)
    return Collected(tuple(bin_.deleted), bin_.freed_bytes, tuple(problems))


def _manifests_of(store: ObjectStore, ref: CheckpointRef) -> tuple[list[Manifest], list[Problem]]:
    """The manifests that name a checkpoint's packs: as it was committed, and as it was folded."""
    found: list[Manifest] = []
    problem: Problem | None = None
    try:
        record = load_commit(store, ref)
        try:
            found.append(load_original(store, record))
        except CheckpointError as error:
            problem = Problem(commit_key(ref), "damaged", error.what)
        folded = load_folded(store, record)
    except CheckpointError as error:
        return found, [Problem(commit_key(ref), "damaged", error.what)]
    if folded is not None:
        return [*found, folded], []  # the original of a folded one may be gone
    return found, [problem] if problem is not None else []


def collect_litter(
    store: ObjectStore,
    *,
    now_s: float,
    grace_s: float,
    spare: Collection[CheckpointRef] = (),
    only: Collection[CheckpointRef] | None = None,
) -> Collected:
    """Delete what belongs to no commit: remains of dead saves and of interrupted deletions.

    Something younger than the grace is left alone, with all that belongs to the same save, as it may be a save that is
    still going on. A commit object protects its checkpoint even where it cannot be read.

    Args:
        store: The run's store.
        now_s: Seconds since the epoch.
        grace_s: Longer than any save may take.
        spare: Saves known to be going on.
        only: Saves known to be over; everything else is left alone. None: whatever is not spared.

    Raises:
        StorageError: The store failed; whatever is committed is still whole.
    """
    litter = {ref: infos for ref, infos in _by_owner(store).items() if only is None or ref in only}
    committed = {owner_of(info.key) for info in store.list(COMMITS)}  # after the packs: a commit in between protects
    bin_ = _Bin(store)
    for ref in sorted(litter, key=lambda owner: (owner.generation, owner.step)):
        going = litter[ref]
        if ref in committed:
            going = [] if only is not None else _superfluous(going)
        young = any(info.modified_s > now_s - grace_s for info in going)
        if ref not in spare and not young:
            for info in going:
                bin_.delete(info.key, info.size_bytes if info.key.startswith(PACKS) else 0)
    return Collected(tuple(bin_.deleted), bin_.freed_bytes)


def _superfluous(owned: list[ObjectInfo]) -> list[ObjectInfo]:
    """Of a committed checkpoint: the remains of a fold that died, or what a fold has replaced."""
    folded = any(info.key.startswith(FOLDS) for info in owned)
    if not folded:
        return [info for info in owned if info.key.startswith(FOLD_MANIFESTS) or is_fold_pack(info.key)]
    if any(info.key.startswith(MANIFESTS) for info in owned):
        return []
    return [info for info in owned if info.key.startswith(PARTS) or pack_rank(info.key) is not None]


class _Bin:
    """Deletes and remembers."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.deleted: list[str] = []
        self.freed_bytes = 0

    def delete(self, key: str, size_bytes: int = 0) -> None:
        self._store.delete(key)
        self.deleted.append(key)
        self.freed_bytes += size_bytes


def _delete_checkpoint(bin_: _Bin, ref: CheckpointRef, manifests: Iterable[Manifest]) -> None:
    manifests = tuple(manifests)
    bin_.delete(commit_key(ref))
    if any(manifest.folded for manifest in manifests):
        bin_.delete(fold_key(ref))
    for manifest in manifests:
        bin_.delete(manifest.key)
    for manifest in manifests:
        for rank in range(0 if manifest.folded else manifest.meta.world_size):
            bin_.delete(part_key(ref, rank))
        for pack in manifest.packs:
            bin_.delete(pack.key, pack.size_bytes)


def _by_owner(store: ObjectStore) -> dict[CheckpointRef, list[ObjectInfo]]:
    """All folds, manifests, parts and packs by the checkpoint that they belong to, in the order to delete them in."""
    owned: dict[CheckpointRef, list[ObjectInfo]] = defaultdict(list)
    for info in _listed(store):
        owner = owner_of(info.key)
        if owner is not None:  # a key that is not one of ours is none of our business
            owned[owner].append(info)
    return owned


def _listed(store: ObjectStore) -> Iterable[ObjectInfo]:
    # Packs first: a save that comes to its commit after all finds a pack gone, and is refused. Were a part gone and the
    # packs still there, it would be committed without it.
    for prefix in (PACKS, PARTS, MANIFESTS, FOLD_MANIFESTS, FOLDS):
        yield from store.list(prefix)
