"""The run's format record: written once, and a run that another version wrote, which is not understood here, is refused.

Nothing that is restored depends on it: manifests and commits carry their own format. It only says early and clearly
what they would say later. So a damaged one is written anew, unless a commit says that a newer version wrote here.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.frame_header import Codec
from stormsail.platform.checkpoint.keys import COMMITS, FORMAT_KEY
from stormsail.platform.checkpoint.manifest import FORMAT, FormatRecord, Positive
from stormsail.platform.checkpoint.records import read_twice, seal, unseal
from stormsail.platform.errors import CheckpointError, ObjectMissingError, PreconditionFailedError, StateMismatchError
from stormsail.platform.storage.store import ObjectStore


class _AnyFormat(BaseModel):
    """As much of a commit as tells which format it has, in this version's or any other."""

    model_config = ConfigDict(extra="ignore", strict=True)

    format: Positive


def ensure_format(store: ObjectStore) -> str:
    """Write `format.json` at the run's root, once, or anew if it is damaged; refuse a run that is not understood here.

    Returns:
        What was wrong with the record that had to be replaced; "" for none.

    Raises:
        StateMismatchError: The format is newer than this version, or frames may be coded in a way that it does not know.
        StorageError: The store failed.
    """
    ours = FormatRecord(format=FORMAT, chunk_elements=CHUNK_ELEMENTS, codecs={c.name.lower(): int(c) for c in Codec})
    try:
        store.put(FORMAT_KEY, seal(ours), if_none_match=True)
    except PreconditionFailedError:
        try:
            found = _read(store)
        except CheckpointError as error:
            _refuse_newer_commits(store)
            store.put(FORMAT_KEY, seal(ours))
            return str(error.what)
        _refuse_others(found)
    return ""


def check_format(store: ObjectStore) -> None:
    """Refuse a run that is not understood here.

    Raises:
        StateMismatchError: The format is newer than this version, or frames may be coded in a way that it does not know.
        CheckpointError: The record is damaged, or there is none.
    """
    try:
        found = _read(store)
    except ObjectMissingError as error:
        raise CheckpointError("this place holds no checkpoints: there is no format record", where=FORMAT_KEY) from error
    _refuse_others(found)


def _read(store: ObjectStore) -> FormatRecord:
    return read_twice(lambda: unseal(store.get(FORMAT_KEY), FormatRecord, FORMAT_KEY))


def _refuse_newer_commits(store: ObjectStore) -> None:
    """Ask the commits instead: each says its format, and is sealed too; damaged ones say nothing."""
    for info in store.list(COMMITS):
        try:
            found = unseal(store.get(info.key), _AnyFormat, info.key)
        except (CheckpointError, ObjectMissingError):  # damaged, or just deleted: another one may tell
            continue
        if found.format > FORMAT:
            raise _newer(f"format {found.format}; this version knows format {FORMAT}", info.key)


def _refuse_others(found: FormatRecord) -> None:
    if found.format > FORMAT or found.chunk_elements != CHUNK_ELEMENTS:
        raise _newer(
            f"format {found.format} with chunks of {found.chunk_elements} elements; "
            f"this version knows format {FORMAT} with {CHUNK_ELEMENTS}",
            FORMAT_KEY,
        )
    # Met in a frame, such a codec would pass for damage, and every checkpoint that has it for a lost one.
    unknown = sorted(set(found.codecs.values()) - set(map(int, Codec)))
    if unknown:
        raise StateMismatchError(
            f"the run's checkpoints may have frames of codec {', '.join(map(str, unknown))}, which this version does not read; "
            f"it knows {', '.join(str(int(codec)) for codec in Codec)}",
            where=FORMAT_KEY,
            todo="use the Stormsail version that wrote it, older or newer than this one, or begin a run under another name",
        )


def _newer(what: str, where: str) -> StateMismatchError:
    return StateMismatchError(
        f"the run's checkpoints have {what}",
        where=where,
        todo="use the Stormsail version that wrote it, or a newer one",
    )
