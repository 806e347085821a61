"""Commands that only read a file start fast: nothing that they import brings in a heavy library.

import-linter cannot see this, because it counts imports inside functions, and those are how a command
that does need torch or Ray gets them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "ray", "deepspeed", "mlflow", "boto3", "botocore", "pandas", "numpy")

# What `--help`, `validate`, `schema` and `plan` load, as patterns below the root.
LIGHT = (
    "platform/cli.py",
    "platform/certificate*.py",
    "platform/commands.py",
    "platform/commands/**/*.py",
    "platform/config/**/*.py",
    "platform/errors.py",
    "platform/home.py",
    "platform/messages.py",
    "platform/plan.py",
    "supervisor/backtest/commands.py",
    "supervisor/commands.py",
    "supervisor/commands/**/*.py",
    "tuning/commands.py",
)

PROBE = """
import importlib, sys
heavy = set(sys.argv[1].split(","))
for name in sys.argv[2:]:
    importlib.import_module(name)
    found = sorted(heavy & sys.modules.keys())
    if found:
        sys.exit(f"{name} imports {', '.join(found)} when it is imported; move that into the function that needs it")
"""


def test_light_modules_import_nothing_heavy(root: Path) -> None:
    paths = sorted({path for pattern in LIGHT for path in root.glob(pattern)})
    modules = ["stormsail." + ".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    assert "stormsail.platform.config.model" in modules
    done = subprocess.run(
        [sys.executable, "-c", PROBE, ",".join(HEAVY), *modules],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
