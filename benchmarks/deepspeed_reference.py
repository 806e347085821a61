"""DeepSpeed's own checkpoint of the quickstart's model, in a process of its own; one JSON object on the last line.

The sizes do not depend on the values: nothing in it is compressed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore
from training_state import QUICKSTART

from stormsail.platform.config.load import load_config
from stormsail.platform.home import Home
from stormsail.platform.messages import World
from stormsail.workers import world as worlds
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.extension_build import build_extensions
from stormsail.workers.extensions import extension_folder

CPU = torch.device("cpu")


def measure() -> dict[str, float]:
    """Bytes per parameter of `save_checkpoint` from one rank."""
    config = load_config(QUICKSTART, overrides=["drill.faults=[]", "drill.twin_step=null"], environ={})
    build_extensions(extension_folder(Home.here()), notify=lambda text: print(text, file=sys.stderr))
    torch.set_num_threads(1)
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    worlds.form(World(1, 0, 1, "127.0.0.1", int(meeting.port)), local_rank=0, device=CPU, timeout_s=60.0)
    engine = ZeroEngine(config, precision="bf16", rank=0, world_size=1, device=CPU)
    parameters = sum(piece.count for piece in engine.pieces)
    engine.copy_state()  # lets the optimizer make its moments
    with tempfile.TemporaryDirectory() as folder:
        engine._engine.save_checkpoint(folder, tag="measured")  # noqa: SLF001 - the very call to compare with
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    engine.destroy()
    worlds.leave()
    return {"bytes_per_parameter": size / parameters, "parameters": parameters}


def main() -> None:
    with redirect_stdout(sys.stderr):
        found = measure()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
