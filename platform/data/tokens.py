"""Token shards: a data set as a folder of flat binary files, memory-mapped.

    FOLDER/spec.json        what is there: type, vocabulary, shards with their counts and digests
    FOLDER/shard-00000.bin  tokens, little-endian, one after another

The shards are one stream of tokens; where it is cut into files means nothing. A folder is written under
another name and renamed when it is complete, so that it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from stormsail.platform.errors import ConfigError

SPEC_FILE = "spec.json"
_STALE_AFTER_S = 3600.0

Tokens: TypeAlias = npt.NDArray[np.unsignedinteger]
Sample: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""(tokens, targets, mask) of one sample, each of shape [sequence_tokens]; the mask weighs each target."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ShardSpec(_Frozen):
    """One shard file."""

    file: str
    tokens: int
    sha256: str


class DataSpec(_Frozen):
    """What a folder of shards holds.

    Attributes:
        format: Version of the layout.
        dtype: Type of a token in the files (little-endian).
        vocab_size: All tokens are below this.
        source: Where the tokens come from, for people.
        shards: The files in the order of the stream.
        digest: Over type, vocabulary and the shards' digests: equal digests mean equal samples.
    """

    format: Literal[1] = 1
    dtype: Literal["uint8", "uint16", "uint32"]
    vocab_size: int
    source: str
    shards: tuple[ShardSpec, ...]
    digest: str

    @property
    def tokens(self) -> int:
        """Tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)

    def expected_digest(self) -> str:
        """The digest that follows from the other fields."""
        parts = [f"{self.format} {self.dtype} {self.vocab_size}"]
        parts += [f"{shard.tokens} {shard.sha256}" for shard in self.shards]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class TokenDataset:
    """A folder of shards, opened for reading. Cheap to pickle: the other side opens the folder again.

    Attributes:
        folder: Where it lies.
        spec: What it holds.
    """

    def __init__(self, folder: Path, spec: DataSpec) -> None:
        self.folder = folder
        self.spec = spec
        self._maps: list[Tokens] = [
            np.memmap(folder / shard.file, dtype=_stored(spec.dtype), mode="r") for shard in spec.shards
        ]
        self._starts = np.cumsum([0, *(shard.tokens for shard in spec.shards)], dtype=np.int64)

    def __reduce__(self) -> tuple[object, ...]:
        return (TokenDataset.open, (self.folder,))

    @classmethod
    def open(cls, folder: Path) -> TokenDataset:
        """Open a folder after checking that each shard is there in its full size.

        Raises:
            ConfigError: No data set there, a spec that cannot be read, or a shard missing or of the wrong size.
        """
        spec = read_spec(folder)
        _check_sizes(folder, spec)
        return cls(folder, spec)

    def samples(self, sequence_tokens: int) -> int:
        """How many samples of this length the stream holds; each also needs the token after its last."""
        return max(0, (self.spec.tokens - 1) // sequence_tokens)

    def sample(self, index: int, sequence_tokens: int) -> Sample:
        """Sample `index` (0-based): its tokens, the same shifted by one as targets, and a mask of ones."""
        if not 0 <= index < self.samples(sequence_tokens):
            raise IndexError(f"sample {index} of {self.samples(sequence_tokens)}")
        stream = self._read(index * sequence_tokens, sequence_tokens + 1)
        return stream[:-1], stream[1:], np.ones(sequence_tokens, dtype=np.float32)

    def verify(self) -> None:
        """Read every byte and compare the digests.

        Raises:
            ConfigError: A shard's bytes are not those that were written.
        """
        for shard in self.spec.shards:
            with (self.folder / shard.file).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != shard.sha256:
                raise ConfigError(
                    f"the shard's bytes have changed: sha256 is {found[:12]}, expected {shard.sha256[:12]}",
                    where=str(self.folder / shard.file),
                    todo=_rewrite_hint(self.folder),
                )

    def _read(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """`count` tokens of the stream from `start`, across as many shards as they lie in."""
        out = np.empty(count, dtype=np.int64)
        filled = 0
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while filled < count:
            offset = start + filled - int(self._starts[number])
            piece = self._maps[number][offset : offset + count - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            number += 1
        return out


def read_spec(folder: Path) -> DataSpec:
    """Read and check `spec.json`. Raises `ConfigError`."""
    path = folder / SPEC_FILE
    try:
        spec = DataSpec.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"there is no data set here: {SPEC_FILE} is missing", where=str(folder), todo="Correct the path."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(path), todo="Correct the path or its rights."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"is not a description of token shards: {key + ': ' if key else ''}{first['msg']}",
            where=str(path),
            todo=_rewrite_hint(folder),
        ) from None
    if spec.digest != spec.expected_digest():
        raise ConfigError("its digest does not fit its shards", where=str(path), todo=_rewrite_hint(folder))
    return spec


def write_shards(
    folder: Path, token_chunks: Iterable[npt.NDArray[np.integer]], *, vocab_size: int, shard_tokens: int, source: str
) -> DataSpec:
    """Write a stream of tokens as a new data set; the folder appears when it is complete.

    Of two processes that write the same tokens to the same folder at once, both succeed and one folder stays.

    Args:
        folder: Must not exist, or hold the very same data.
        token_chunks: The stream in pieces of any length; each token in [0, vocab_size).
        vocab_size: Chooses the type in the files.
        shard_tokens: Tokens per file; the last one may be shorter.
        source: Where the tokens come from, for people.

    Raises:
        ConfigError: A token out of range, an empty stream, a folder that cannot be written or that holds
            something else.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
        temporary.mkdir()
        try:
            spec = _write_all(temporary, token_chunks, vocab_size, shard_tokens, source)
            return _publish(temporary, folder, spec)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"token shards cannot be written: {error.strerror or error}",
            where=str(error.filename or folder),
            todo="Make room or allow writing there, or set STORMSAIL_HOME to another folder.",
        ) from error


def _write_all(
    folder: Path,
    token_chunks: Iterable[npt.NDArray[np.integer]],
    vocab_size: int,
    shard_tokens: int,
    source: str,
) -> DataSpec:
    dtype = _dtype_for(vocab_size)
    shards = []
    for number, tokens in enumerate(_recut(_checked(token_chunks, vocab_size, dtype), shard_tokens)):
        data = tokens.tobytes()
        file = f"shard-{number:05d}.bin"
        _write_durably(folder / file, data)
        shards.append(ShardSpec(file=file, tokens=len(tokens), sha256=hashlib.sha256(data).hexdigest()))
    if not shards:
        raise ConfigError("there is not a single token to write", where=source, todo="Give it some text.")
    bare = DataSpec(dtype=dtype, vocab_size=vocab_size, source=source, shards=tuple(shards), digest="")
    spec = bare.model_copy(update={"digest": bare.expected_digest()})
    _write_durably(folder / SPEC_FILE, json.dumps(spec.model_dump(mode="json"), indent=1).encode())
    return spec


def _publish(temporary: Path, folder: Path, spec: DataSpec) -> DataSpec:
    """Rename the finished folder into place, or accept what another process put there meanwhile."""
    try:
        temporary.rename(folder)
    except OSError:
        if not (folder / SPEC_FILE).exists():
            raise
        found = TokenDataset.open(folder).spec
        if found.digest != spec.digest:
            raise ConfigError(
                f"the folder already holds other data ({found.source})",
                where=str(folder),
                todo="Choose another folder, or delete this one.",
            ) from None
        return found
    return spec


def _checked(
    chunks: Iterable[npt.NDArray[np.integer]], vocab_size: int, dtype: str
) -> Iterator[npt.NDArray[np.integer]]:
    """Cast the chunks to the stored type, after making sure that nothing is lost by it."""
    for chunk in chunks:
        if chunk.size and (int(chunk.min()) < 0 or int(chunk.max()) >= vocab_size):
            raise ConfigError(
                f"token {int(chunk.max() if chunk.max() >= vocab_size else chunk.min())} is outside the vocabulary "
                f"[0, {vocab_size})",
                todo="Raise vocab_size, or check the tokenizer.",
            )
        yield chunk.astype(_stored(dtype))


def _recut(chunks: Iterable[npt.NDArray[np.integer]], size: int) -> Iterator[npt.NDArray[np.integer]]:
    """Cut a stream of arrays into arrays of exactly `size`, the last one apart."""
    held: list[npt.NDArray[np.integer]] = []
    count = 0
    for chunk in chunks:
        held.append(chunk)
        count += len(chunk)
        if count >= size:
            joined = np.concatenate(held)
            whole = count - count % size
            yield from (joined[start : start + size] for start in range(0, whole, size))
            held, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def _dtype_for(vocab_size: int) -> Literal["uint8", "uint16", "uint32"]:
    if vocab_size < 1:
        raise ConfigError(f"vocab_size is {vocab_size}", todo="It must be at least 1.")
    if vocab_size <= 1 << 8:
        return "uint8"
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _stored(dtype: str) -> np.dtype[np.unsignedinteger]:
    return np.dtype(dtype).newbyteorder("<")


def _check_sizes(folder: Path, spec: DataSpec) -> None:
    """Raise one error for all shards that are missing or of the wrong size."""
    width = _stored(spec.dtype).itemsize
    bad = []
    for shard in spec.shards:
        path = folder / shard.file
        if not path.is_file():
            bad.append((path, "the shard is missing"))
        elif path.stat().st_size != shard.tokens * width:
            bad.append((path, f"the shard has {path.stat().st_size} bytes, expected {shard.tokens * width}"))
    if bad:
        path, problem = bad[0]
        others = f" (and {len(bad) - 1} more of {len(spec.shards)} shards are damaged)" if len(bad) > 1 else ""
        raise ConfigError(problem + others, where=str(path), todo=_rewrite_hint(folder))


def _rewrite_hint(folder: Path) -> str:
    return f"Restore the file from its source, or delete {folder} and have the shards written again."


def _remove_stale(folder: Path) -> None:
    """Remove what writers of this folder left behind when they were killed; a live one is younger than an hour."""
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        try:
            stale = time.time() - left.stat().st_mtime > _STALE_AFTER_S
        except FileNotFoundError:
            continue  # its writer has just finished
        if stale:
            shutil.rmtree(left, ignore_errors=True)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
