"""The run's format record: written once, and a run that a newer version wrote is refused."""

from __future__ import annotations

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.codec import Codec
from stormsail.platform.checkpoint.keys import FORMAT_KEY
from stormsail.platform.checkpoint.manifest import FORMAT, FormatRecord
from stormsail.platform.checkpoint.records import read_twice, seal, unseal
from stormsail.platform.errors import CheckpointError, ObjectMissingError, PreconditionFailedError
from stormsail.platform.storage.store import ObjectStore


def ensure_format(store: ObjectStore) -> None:
    """Write `format.json` at the run's root, once; refuse a run that a newer version wrote.

    Raises:
        CheckpointError: The format is newer than this version, or the record is damaged.
    """
    ours = FormatRecord(format=FORMAT, chunk_elements=CHUNK_ELEMENTS, codecs={c.name.lower(): int(c) for c in Codec})
    try:
        store.put(FORMAT_KEY, seal(ours), if_none_match=True)
    except PreconditionFailedError:
        check_format(store)


def check_format(store: ObjectStore) -> None:
    """Refuse a run that a newer version wrote.

    Raises:
        CheckpointError: The format is newer than this version, the record is damaged, or there is none.
    """
    try:
        found = read_twice(lambda: unseal(store.get(FORMAT_KEY), FormatRecord, FORMAT_KEY))
    except ObjectMissingError as error:
        raise CheckpointError("this place holds no checkpoints: there is no format record", where=FORMAT_KEY) from error
    if found.format > FORMAT or found.chunk_elements != CHUNK_ELEMENTS:
        raise CheckpointError(
            f"the run's checkpoints have format {found.format} with chunks of {found.chunk_elements} elements; "
            f"this version knows format {FORMAT} with {CHUNK_ELEMENTS}",
            where=FORMAT_KEY,
            todo="use the Stormsail version that wrote it, or a newer one",
        )
