"""What a checkpoint costs in bytes and in time, beside DeepSpeed's, torch's distributed one, and plain zstd.

    benchmarks/checkpoint.py [--small] [--json]

Bytes: the quickstart's model at step 480 and ten steps later, trained here the first time (some minutes) and kept in
the home folder. Times: the same work in turns, in CPU seconds of one thread, the median of several rounds; without
--small on a model of 57 million parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import zstandard
from training_state import COMPONENTS, Recipe, State, States, states

from stormsail.platform.checkpoint.chunks import cut
from stormsail.platform.checkpoint.codec import Base, decode, encode
from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.delta import takes_delta
from stormsail.platform.checkpoint.digest import Digest
from stormsail.platform.checkpoint.keyframe import Keyframe
from stormsail.platform.checkpoint.keys import owner_of
from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.rounding import to_bf16
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec, Words
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore

Row: TypeAlias = dict[str, object]
Bars: TypeAlias = tuple[float | None, float | None]

LARGE = Recipe(model=(("d_model", 768), ("layers", 8), ("heads", 12)), at=20, later=30, batch=2)
WORLD_SIZE = 2
RAW_BYTES = 14.0
SPEED = "MB/s of raw state per core"
_MB = 1_000_000


# --------------------------------------------------------------------------------------------------------- bytes


def ours(found: States, first: State, second: State) -> tuple[float, float]:
    """Bytes per parameter of everything on the store, for a keyframe and a difference to it, proven by a restore."""
    store = MemoryStore()
    ensure_format(store)
    bases: list[Keyframe] = []
    for step, state in ((480, first), (490, second)):
        parts = []
        for rank in range(WORLD_SIZE):
            shards = _shards(found, state, rank)
            base = bases[rank] if step == 490 else None  # noqa: PLR2004 - the step of the difference
            part = write_part(
                store,
                generation=1,
                step=step,
                rank=rank,
                world_size=WORLD_SIZE,
                shards=shards,
                cancelled=lambda: False,
                base=base,
            )
            parts.append(part)
            if base is None:
                bases.append(Keyframe(part, shards))
        commit(store, parts, _meta(step), parent=None, time_s=0.0)
        _prove(store, CheckpointRef(1, step), found, state)
    sizes = [
        sum(info.size_bytes for info in store.list() if owner_of(info.key) == CheckpointRef(1, step))
        for step in (480, 490)
    ]
    return sizes[0] / found.parameters, sizes[1] / found.parameters


def _shards(found: States, state: State, rank: int) -> list[Shard]:
    shards = []
    for name, shape in found.shapes.items():
        for component in COMPONENTS:
            values = state[name, component]
            start, stop = (values.size * edge // WORLD_SIZE for edge in (rank, rank + 1))
            shards.append(Shard(ShardSpec(name, component, shape, start, stop - start), values[start:stop]))
    return shards


def _meta(step: int) -> CheckpointMeta:
    return CheckpointMeta(
        step=step,
        applied=step,
        tokens=step * 1024,
        data_position=step * 8,
        world_size=WORLD_SIZE,
        threads=1,
        precision="bf16",
        config_digest="0" * 64,
    )


def _prove(store: MemoryStore, ref: CheckpointRef, found: States, state: State) -> None:
    specs = [
        ShardSpec(name, component, found.shapes[name], 0, state[name, component].size) for name, component in state
    ]
    for shard in read_shards(store, load_manifest(store, ref), specs):
        expected = state[shard.spec.name, shard.spec.component]
        if not np.array_equal(shard.words, expected.view(np.uint32)):
            sys.exit(f"{shard.spec.label} of step {ref.step} came back as something else")


def zstd3(found: States, state: State) -> float:
    """Bytes per parameter of every raw tensor in one zstd frame of level 3, bf16 weights included."""
    compressor = zstandard.ZstdCompressor(level=3)
    sizes = [len(compressor.compress(values.tobytes())) for values in state.values()]
    sizes += [
        len(compressor.compress(to_bf16(values.view(np.uint32)).tobytes()))
        for (_, component), values in state.items()
        if component == "master"
    ]
    return sum(sizes) / found.parameters


def torch_dcp(found: States, state: State) -> float:
    """Bytes per parameter of torch's distributed checkpoint with its zstd extension, bf16 weights included."""
    from torch.distributed.checkpoint._extension import ZStandard
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {f"{component}.{name}": torch.from_numpy(values) for (name, component), values in state.items()}
    weights = {name: values for (name, component), values in state.items() if component == "master"}
    tensors |= {f"model.{name}": torch.from_numpy(values).bfloat16() for name, values in weights.items()}
    with tempfile.TemporaryDirectory() as folder:
        writer = FileSystemWriter(folder, _extensions=[ZStandard()])
        save(tensors, storage_writer=writer, no_dist=True)
        return _folder_bytes(Path(folder)) / found.parameters


def deepspeed() -> dict[str, float]:
    """What DeepSpeed's own checkpoint takes, from a process of its own."""
    script = Path(__file__).with_name("deepspeed_reference.py")
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def byte_rows(found: States) -> list[Row]:
    """All that is counted in bytes per parameter."""
    keyframe, difference = ours(found, found.keyframe, found.later)
    rounded, rounded_difference = ours(found, found.rounded, found.rounded_later)
    references = {
        "DeepSpeed save_checkpoint": deepspeed()["bytes_per_parameter"],
        "torch DCP with zstd": torch_dcp(found, found.later),
        "zstd-3 of the raw state": zstd3(found, found.later),
    }
    rows = []
    for name, reference in references.items():
        rows.append(_row("keyframe", "B/parameter", keyframe, reference, against=name, bars=(9.95, 9.85)))
        rows.append(_row("difference, 10 steps", "B/parameter", difference, reference, against=name, bars=(9.3, 8.9)))
    rows.append(_row("rounded keyframe", "B/parameter", rounded, RAW_BYTES, against="raw"))
    rows.append(
        _row(
            "rounded difference, 10 steps", "B/parameter", rounded_difference, RAW_BYTES, against="raw", bars=(4.4, 3.5)
        )
    )
    return rows


# --------------------------------------------------------------------------------------------------------- speed


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


def speed_rows(found: States, rounds: int) -> list[Row]:
    """Speed of one core over the fp32 state, against zstd-3 of the same raw bytes, in turns."""
    pieces = list(_pieces(found))
    raw = sum(words.nbytes for words, _ in pieces)
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    plain = [encode(words) for words, _ in pieces]
    differences = [encode(words, base=base) for words, base in pieces]
    packed = [compressor.compress(words.data) for words, _ in pieces]
    works = {
        "encode a keyframe": Work(lambda: sum(len(encode(words)) for words, _ in pieces), []),
        "encode a difference": Work(lambda: sum(len(encode(words, base=base)) for words, base in pieces), []),
        "encode zstd-3": Work(lambda: sum(len(compressor.compress(words.data)) for words, _ in pieces), []),
        "decode a keyframe": Work(lambda: sum(decode(frame).nbytes for frame in plain), []),
        "decode a difference": Work(
            lambda: sum(decode(frame, base=base).nbytes for frame, (_, base) in zip(differences, pieces, strict=True)),
            [],
        ),
        "decode zstd-3": Work(lambda: sum(len(decompressor.decompress(data)) for data in packed), []),
        "state digest": Work(lambda: len([Digest.of_words("w", "master", 0, words) for words, _ in pieces]), []),
        "SHA-256 of the frames": Work(lambda: len([hashlib.sha256(frame).digest() for frame in plain]), []),
    }
    for _ in range(rounds):
        for work in works.values():
            begun = time.thread_time()
            work.made = work.do()
            work.took_s.append(time.thread_time() - begun)
    speeds = {name: raw / statistics.median(work.took_s) / _MB for name, work in works.items()}
    return [_speed_row(name, works, speeds, raw) for name in works if not name.endswith("zstd-3")]


def _speed_row(name: str, works: dict[str, Work], speeds: dict[str, float], raw: int) -> Row:
    verb = name.partition(" ")[0]
    if verb not in ("encode", "decode"):
        return _row(name, SPEED, speeds[name], None, lower=False)
    other = f"{verb} zstd-3"
    label = "zstd-3"
    if verb == "encode":
        label = f"zstd-3 at {raw / works[other].made:.3f}x, ours at {raw / works[name].made:.3f}x"
    bars = (1.0, 2.0) if verb == "encode" else (0.6, 1.0)
    return _row(name, SPEED, speeds[name], speeds[other], against=label, bars=bars, lower=False, by_ratio=True)


def _pieces(found: States) -> Sequence[tuple[Words, Base | None]]:
    """Frames as a save would cut them, each with what a difference of it would build on."""
    pieces: list[tuple[Words, Base | None]] = []
    for (name, component), values in found.later.items():
        spec = ShardSpec(name, component, found.shapes[name], 0, values.size)
        older = cut(Shard(spec, found.keyframe[name, component]))
        for piece, base in zip(cut(Shard(spec, values)), older, strict=True):
            pieces.append((piece.words, Base(base.words, bytes(16)) if takes_delta(component) else None))
    return pieces


# --------------------------------------------------------------------------------------------------------- output


def _row(
    figure: str,
    unit: str,
    value: float,
    reference: float | None,
    *,
    against: str = "",
    bars: Bars = (None, None),
    lower: bool = True,
    by_ratio: bool = False,
) -> Row:
    ratio = value / reference if reference else None
    judged = ratio if by_ratio else value
    bar, aim = bars
    passed = None if bar is None or judged is None else (judged <= bar if lower else judged >= bar)
    return {
        "figure": figure,
        "unit": unit,
        "ours": value,
        "reference": reference,
        "reference_name": against,
        "ratio": ratio,
        "bar": bar,
        "aim": aim,
        "pass": passed,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows for people."""
    head = ["figure", "unit", "ours", "reference", "ratio", "bar", "aim", "pass", "against"]
    keys = ["figure", "unit", "ours", "reference", "ratio", "bar", "aim", "pass", "reference_name"]
    lines = [head, *([_cell(row[key]) for key in keys] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]
    text.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(text)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3f}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004 - digits that mean something
    return "-" if value is None else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--small", action="store_true", help="time the quickstart's model instead of a larger one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = states(Recipe())
    rows = byte_rows(found)
    if not options.small:
        found = states(LARGE)
    rows += speed_rows(found, rounds=5 if options.small else 3)
    if options.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        print(json.dumps({"benchmark": "checkpoint", "machine": machine, "rows": rows}))
    else:
        print(table(rows))
    return 0 if all(row["pass"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
