"""What needs an engine is measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_LIMIT_S = 1500.0


def run_child(name: str, *, small: bool) -> dict[str, float]:
    """Run a script beside `checkpoint.py`; gives the JSON object on its last line."""
    script = Path(__file__).parent.parent / name
    command = [sys.executable, str(script), *(["--small"] if small else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_LIMIT_S)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
