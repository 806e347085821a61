"""Where the objects of a run's checkpoints lie. Names are only addresses: order and truth come from the bodies."""

from __future__ import annotations

import hashlib
import re

from stormsail.platform.messages import CheckpointRef

FORMAT_KEY = "format.json"
GENERATIONS = "generations/"
COMMITS = "commits/"
MANIFESTS = "manifests/"
PARTS = "parts/"
PACKS = "packs/"
LOG = "log/"
FOLDS = "folds/"
FOLD_MANIFESTS = "fold-manifests/"
PINS = "pins/"
LEASES = "leases/"

_LOG_NAME = re.compile(r"^(\d{8,})/(\d{12,})/(\d{5,})$")
_PACK_NAME = re.compile(r"^(\d{8,})-(\d{12,})-(\d{5,}|fold)-(\d{5,})$")
_REF = re.compile(r"^(\d{8,})/(\d{12,})$")


def generation_key(number: int) -> str:
    """The record of one generation."""
    return f"{GENERATIONS}{number:08d}"


def commit_key(ref: CheckpointRef) -> str:
    """The commit: without it there is no checkpoint."""
    return f"{COMMITS}{_ref_path(ref)}"


def manifest_key(ref: CheckpointRef) -> str:
    """The merged manifest."""
    return f"{MANIFESTS}{_ref_path(ref)}"


def part_key(ref: CheckpointRef, rank: int) -> str:
    """What one rank wrote."""
    return f"{PARTS}{_ref_path(ref)}/{rank:05d}"


def fold_key(ref: CheckpointRef) -> str:
    """Says that the checkpoint was written once more, whole in itself."""
    return f"{FOLDS}{_ref_path(ref)}"


def fold_manifest_key(ref: CheckpointRef) -> str:
    """The manifest of the checkpoint as it was written once more."""
    return f"{FOLD_MANIFESTS}{_ref_path(ref)}"


def pin_key(ref: CheckpointRef) -> str:
    """Says that somebody wants the checkpoint kept."""
    return f"{PINS}{_ref_path(ref)}"


def lease_key(reader: str) -> str:
    """What a reader needs for now."""
    return f"{LEASES}{reader}"


def pack_key(ref: CheckpointRef, rank: int | None, number: int) -> str:
    """A rank's pack, or (None) one of a fold; two digits of a hash spread the packs over the store's partitions."""
    writer = "fold" if rank is None else f"{rank:05d}"
    name = f"{ref.generation:08d}-{ref.step:012d}-{writer}-{number:05d}"
    return f"{PACKS}{hashlib.sha256(name.encode()).hexdigest()[:2]}/{name}"


def log_prefix(generation: int) -> str:
    """Where a generation's gradient log lies."""
    return f"{LOG}{generation:08d}/"


def log_key(generation: int, step: int, rank: int) -> str:
    """What one rank logged of one step; the steps of a generation are in order by name."""
    return f"{log_prefix(generation)}{step:012d}/{rank:05d}"


def log_place(key: str) -> tuple[int, int, int] | None:
    """Generation, step and rank of a key of the gradient log; None for keys that are not of it."""
    match = _LOG_NAME.fullmatch(key.removeprefix(LOG)) if key.startswith(LOG) else None
    place = (int(match[1]), int(match[2]), int(match[3])) if match else None
    return place if place is not None and log_key(*place) == key else None


def owner_of(key: str) -> CheckpointRef | None:
    """The checkpoint that an object belongs to; None for keys that are not one of ours, or of no checkpoint."""
    if key.startswith(PACKS):
        return _pack_owner(key)
    for prefix, make in _BY_REF.items():
        if key.startswith(prefix):
            ref = _parse_ref(key.removeprefix(prefix))
            return ref if ref is not None and make(ref) == key else None
    if key.startswith(PARTS):
        path, _, rank = key.removeprefix(PARTS).rpartition("/")
        ref = _parse_ref(path)
        return ref if ref is not None and rank.isdecimal() and part_key(ref, int(rank)) == key else None
    return None


def pack_rank(key: str) -> int | None:
    """The rank that wrote a pack, or None for a key that names no rank's pack."""
    match = _PACK_NAME.fullmatch(key.rpartition("/")[2])
    return int(match[3]) if match and match[3] != "fold" and _pack_owner(key) is not None else None


def is_fold_pack(key: str) -> bool:
    """Whether a key names a pack of a fold."""
    match = _PACK_NAME.fullmatch(key.rpartition("/")[2])
    return match is not None and match[3] == "fold" and _pack_owner(key) is not None


def _pack_owner(key: str) -> CheckpointRef | None:
    match = _PACK_NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    ref = CheckpointRef(int(match[1]), int(match[2]))
    rank = None if match[3] == "fold" else int(match[3])
    return ref if pack_key(ref, rank, int(match[4])) == key else None


def _parse_ref(path: str) -> CheckpointRef | None:
    match = _REF.fullmatch(path)
    return CheckpointRef(int(match[1]), int(match[2])) if match else None


_BY_REF = {
    COMMITS: commit_key,
    MANIFESTS: manifest_key,
    FOLDS: fold_key,
    FOLD_MANIFESTS: fold_manifest_key,
    PINS: pin_key,
}


def _ref_path(ref: CheckpointRef) -> str:
    return f"{ref.generation:08d}/{ref.step:012d}"
