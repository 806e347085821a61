"""Proving that a checkpoint can be restored, without restoring it: every object, every frame, the root."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from stormsail.platform.checkpoint.commits import Problem, load_commit, load_folded, load_manifest
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.fetch import Request, plan_requests
from stormsail.platform.checkpoint.keys import (
    FORMAT_KEY,
    GENERATIONS,
    commit_key,
    fold_key,
    pack_rank,
    part_key,
)
from stormsail.platform.checkpoint.lines import load_generation
from stormsail.platform.checkpoint.links import Links
from stormsail.platform.checkpoint.manifest import Commit, FrameEntry, Manifest, RankPart
from stormsail.platform.checkpoint.opening import load_links, open_request
from stormsail.platform.checkpoint.records import read_twice, unseal_packed
from stormsail.platform.checkpoint.runformat import check_format
from stormsail.platform.errors import CheckpointError, ObjectMissingError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore


def verify(store: ObjectStore, ref: CheckpointRef | Commit, *, deep: bool = True) -> list[Problem]:
    """Every missing or damaged object of one checkpoint; an empty list says that all of it is whole.

    What it builds on counts: a damaged keyframe is a problem of each checkpoint that needs it.

    Args:
        store: The run's store.
        ref: Which checkpoint.
        deep: Read and decode every frame and recompute the root; otherwise only records, names and sizes.

    Raises:
        StorageError: The store failed, so nothing can be said.
    """
    try:
        manifest = load_manifest(store, ref)
        links = load_links(store, manifest)
        needed = links.parents(manifest.frames) if links is not None else []
    except CheckpointError as error:
        name = ref if isinstance(ref, CheckpointRef) else ref.ref
        return [_problem(error, commit_key(name))]
    parts = () if manifest.folded else _part_problems(store, manifest)  # those of a fold may be gone
    problems = [*_fold_problems(store, manifest), *parts, *_pack_problems(store, manifest, range(len(manifest.packs)))]
    if links is not None:
        problems += _pack_problems(store, links.base, sorted({frame.pack for frame in needed}))
    if not deep:
        return problems
    broken = {problem.key for problem in problems}
    found = Digest()
    for request in plan_requests(_readable(manifest, links, broken)):
        digest, bad = _read_request(store, manifest, links, request)
        if bad:  # a bit may have turned on its way, and not on the store
            digest, bad = _read_request(store, manifest, links, request)
        found += digest
        problems.extend(bad)
    if not problems and found != manifest.root_digest:
        problems.append(Problem(manifest.key, "damaged", f"the root is {found}, expected {manifest.root}"))
    return problems


def record_problems(store: ObjectStore) -> list[Problem]:
    """What is wrong with the records that all checkpoints share: the run's format, and its generations.

    Raises:
        StateMismatchError: Another version wrote the run in a way that this one does not know: no damage, but unreadable here.
        StorageError: The store failed, so nothing can be said.
    """
    problems: list[Problem] = []
    for key in (FORMAT_KEY, *(info.key for info in store.list(GENERATIONS))):
        try:
            check_format(store) if key == FORMAT_KEY else load_generation(store, key)
        except CheckpointError as error:
            problems.append(_problem(error, key))
    return problems


def _fold_problems(store: ObjectStore, manifest: Manifest) -> Iterator[Problem]:
    """A fold that cannot be read, where the original still can."""
    if manifest.base is not None:
        try:
            load_folded(store, load_commit(store, manifest.ref))
        except CheckpointError as error:
            yield _problem(error, fold_key(manifest.ref))


def _readable(manifest: Manifest, links: Links | None, broken: Collection[str]) -> list[FrameEntry]:
    """Frames whose packs, and those of what they build on, are there in full length."""

    def sound(frame: FrameEntry) -> bool:
        if manifest.packs[frame.pack].key in broken:
            return False
        if links is None or frame.base is None:
            return True
        return links.base.packs[links.parent(frame).pack].key not in broken

    return [frame for frame in manifest.frames if sound(frame)]


def _read_request(
    store: ObjectStore, manifest: Manifest, links: Links | None, request: Request
) -> tuple[Digest, list[Problem]]:
    found = Digest()
    problems: list[Problem] = []
    key = manifest.packs[request.pack].key
    for frame, _ in open_request(store, manifest, links, request, lambda error: problems.append(_problem(error, key))):
        found += Digest.from_hex(frame.digest)  # which is what `open_frame` has just recomputed
    return found, problems


def _part_problems(store: ObjectStore, manifest: Manifest) -> Iterator[Problem]:
    written = _digest_by_rank(manifest)
    for rank in range(manifest.meta.world_size):
        key = part_key(manifest.ref, rank)
        try:
            part = read_twice(partial(_read_part, store, key))
        except ObjectMissingError:
            yield Problem(key, "missing", "the record of what this rank wrote is gone")
        except CheckpointError as error:
            yield _problem(error, key)
        else:
            if (part.ref, part.rank, part.digest) != (manifest.ref, rank, written[rank].hex):
                told = f"step {part.step}, generation {part.generation}, rank {part.rank}, state digest {part.digest}"
                yield Problem(key, "damaged", f"it is the part of {told}, not this one's ({written[rank]})")


def _read_part(store: ObjectStore, key: str) -> RankPart:
    return unseal_packed(store.get(key), RankPart, key)


def _digest_by_rank(manifest: Manifest) -> dict[int, Digest]:
    """What each rank wrote, by the packs that its frames lie in; a rank without elements has the zero digest."""
    ranks = [pack_rank(pack.key) for pack in manifest.packs]
    sums = dict.fromkeys(range(manifest.meta.world_size), Digest())
    for frame in manifest.frames:
        rank = ranks[frame.pack]
        if rank is not None:  # the completeness check has refused packs that are nobody's
            sums[rank] += Digest.from_hex(frame.digest)
    return sums


def _pack_problems(store: ObjectStore, manifest: Manifest, places: Iterable[int]) -> Iterator[Problem]:
    for pack in (manifest.packs[place] for place in places):
        try:
            found = store.head(pack.key).size_bytes
        except ObjectMissingError:
            yield Problem(pack.key, "missing", f"a pack of {pack.size_bytes} bytes")
            continue
        if found != pack.size_bytes:
            yield Problem(pack.key, "damaged", f"{found} bytes, expected {pack.size_bytes}")


def _problem(error: CheckpointError, fallback: str) -> Problem:
    key = error.objects[0] if error.objects else fallback
    kind = "missing" if _is_missing(error) else "damaged"
    return Problem(key, kind, f"{error.where}: {error.what}" if error.where not in ("", key) else error.what)


def _is_missing(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ObjectMissingError):
        error = error.__cause__
    return error is not None
