"""The stall of a save and the time of a restore, beside a memcpy of the same bytes and DeepSpeed's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from checkpoint_rows.row import Row, make_row

_MILLIS = 1000.0


def rows(*, small: bool) -> list[Row]:
    """One rank, on the quickstart's model if `small`, else on one of 57 million parameters; medians."""
    script = Path(__file__).parent.parent / "places_reference.py"
    command = [sys.executable, str(script), *(["--small"] if small else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1500)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    took = {name: seconds * _MILLIS for name, seconds in found.items()}
    million = f"{found['parameters'] / 1e6:.1f} M parameters"
    return [
        make_row(
            f"stall per save, {million}",
            "ms",
            took["save"],
            took["memcpy"],
            against="a memcpy of the same bytes",
            bars=(2.0, 1.2),
            by_ratio=True,
        ),
        make_row(
            "stall per save",
            "ms",
            took["save"],
            took["deepspeed save"],
            against="DeepSpeed save_checkpoint, new folder, synced",
            bars=(1.0, None),
            by_ratio=True,
        ),
        make_row(
            f"restore from vault, {million}",
            "ms",
            took["vault restore"],
            took["deepspeed load"],
            against="DeepSpeed load_checkpoint, page cache warm",
            bars=(1.0, 0.5),
            by_ratio=True,
        ),
        make_row(
            "restore from a folder, keyframe",
            "ms",
            took["store restore"],
            took["deepspeed load"],
            against="DeepSpeed load_checkpoint, page cache warm",
            by_ratio=True,
        ),
    ]
