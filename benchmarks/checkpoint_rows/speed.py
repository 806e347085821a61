"""Encoding and decoding per core, against zstd-3 of the same raw bytes, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import xxhash
import zstandard
from checkpoint_rows.row import Row, make_row
from training_state import LARGE, Recipe, States, states

from stormsail.platform.checkpoint.chunks import cut
from stormsail.platform.checkpoint.codec import Base, decode, encode
from stormsail.platform.checkpoint.delta import is_worth, takes_delta
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.packer import grid_of
from stormsail.platform.checkpoint.scales import Grid
from stormsail.platform.checkpoint.shards import Shard, ShardSpec, Words

UNIT = "MB/s of raw state per core"
_MB = 1_000_000
_BARS = {
    "encode a keyframe": (1.0, 2.0),
    "encode a difference": (1.0, 2.0),
    "decode a keyframe": (0.6, 1.0),
    "decode a difference, its keyframe being decoded": (0.6, 1.0),
}


@dataclass
class Work:
    """One thing to time: what is done, and how long each round of it took.

    Attributes:
        do: Does it once over the whole state; gives bytes that it made.
        took_s: CPU seconds of each round.
        made: Bytes of the last round.
    """

    do: Callable[[], int]
    took_s: list[float]
    made: int = 0


def rows(*, small: bool) -> list[Row]:
    """Speed of one core over the fp32 state: of the quickstart's model if `small`, else of 57 million parameters."""
    return measure(states(Recipe() if small else LARGE), rounds=5 if small else 3)


def measure(found: States, rounds: int) -> list[Row]:
    """The same work in turns, in CPU seconds of one thread; the median of the rounds."""
    pieces = list(_pieces(found))
    raw = sum(piece.words.nbytes for piece in pieces)
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    plain = [encode(piece.words, grid=piece.grid) for piece in pieces]
    keyframes = [None if piece.base is None else encode(piece.base.words, grid=piece.grid) for piece in pieces]
    differences = [encode(piece.words, base=piece.base, grid=piece.grid) for piece in pieces]
    packed = [compressor.compress(piece.words.data) for piece in pieces]
    works = {
        "encode a keyframe": Work(lambda: sum(len(encode(piece.words, grid=piece.grid)) for piece in pieces), []),
        "encode a difference": Work(lambda: sum(map(_as_difference, pieces)), []),
        "encode a keyframe, with hash and state digest": Work(lambda: sum(map(_saved, pieces)), []),
        "encode zstd-3": Work(lambda: sum(len(compressor.compress(piece.words.data)) for piece in pieces), []),
        "decode a keyframe": Work(lambda: sum(decode(frame).nbytes for frame in plain), []),
        "decode a difference, its keyframe being decoded": Work(
            lambda: sum(
                decode(frame, base=piece.base).nbytes for frame, piece in zip(differences, pieces, strict=True)
            ),
            [],
        ),
        "decode a keyframe and a difference to it": Work(
            lambda: sum(map(_restored, keyframes, differences, pieces)),
            [],
        ),
        "decode zstd-3": Work(lambda: sum(len(decompressor.decompress(data)) for data in packed), []),
        "state digest": Work(lambda: len([Digest.of_words("w", "master", 0, piece.words) for piece in pieces]), []),
        "XXH3 of the frames": Work(lambda: len([xxhash.xxh3_128_digest(frame) for frame in plain]), []),
    }
    for _ in range(rounds):
        for work in works.values():
            begun = time.thread_time()
            work.made = work.do()
            work.took_s.append(time.thread_time() - begun)
    speeds = {name: raw / statistics.median(work.took_s) / _MB for name, work in works.items()}
    ratios = {name: raw / work.made for name, work in works.items()}
    made = []
    for name in works:
        if not name.endswith("zstd-3"):
            made.append(_speed_row(name, speeds))
        if name in ("encode a keyframe", "encode a difference"):
            made.append(_ratio_row(name, ratios))
    return made


def _saved(piece: Piece) -> int:
    """All that a save does with a piece on one core."""
    frame = encode(piece.words, grid=piece.grid)
    xxhash.xxh3_128_digest(frame)
    Digest.of_words("w", "master", 0, piece.words)
    return len(frame)


def _as_difference(piece: Piece) -> int:
    """What encoding a piece of a difference is, with the question whether it is worth one."""
    return len(encode(piece.words, base=_worth(piece.words, piece.older), grid=piece.grid))


def _worth(words: Words, older: Base | None) -> Base | None:
    return older if older is not None and is_worth(words, older.words) else None


def _restored(keyframe: bytes | None, difference: bytes, piece: Piece) -> int:
    """All that is decoded for a piece whose keyframe has to be read first."""
    base = None if keyframe is None or piece.base is None else Base(decode(keyframe), piece.base.digest)
    return decode(difference, base=base).nbytes


def _speed_row(name: str, speeds: dict[str, float]) -> Row:
    verb = name.partition(" ")[0]
    if verb not in ("encode", "decode"):
        return make_row(name, UNIT, speeds[name], None, lower=False)
    bars = _BARS.get(name, (None, None))
    return make_row(
        name, UNIT, speeds[name], speeds[f"{verb} zstd-3"], against="zstd-3", bars=bars, lower=False, by_ratio=True
    )


def _ratio_row(name: str, ratios: dict[str, float]) -> Row:
    """The other half of the bar: being faster counts only at a better ratio."""
    return make_row(
        f"{name}, ratio",
        "raw / encoded",
        ratios[name],
        ratios["encode zstd-3"],
        against="zstd-3",
        bars=(1.0, None),
        lower=False,
        by_ratio=True,
    )


@dataclass(frozen=True)
class Piece:
    """The content of one frame as a save would cut it, what a difference of it could build on, and what it does."""

    words: Words
    older: Base | None
    base: Base | None
    grid: Grid | None


def _pieces(found: States) -> Iterator[Piece]:
    for (name, component), values in found.later.items():
        spec = ShardSpec(name, component, found.shapes[name], 0, values.size)
        older = cut(Shard(spec, found.keyframe[name, component]))
        for piece, base in zip(cut(Shard(spec, values)), older, strict=True):
            parent = Base(base.words, bytes(16)) if takes_delta(component) else None
            yield Piece(piece.words, parent, _worth(piece.words, parent), grid_of(piece.spec))
