"""What a checkpoint costs in bytes and in time, beside DeepSpeed's, torch's distributed one, and plain zstd.

    benchmarks/checkpoint.py [--small] [--json] [--only PART ...]

Each module of `checkpoint_rows/` that is named in PARTS measures one part and gives its rows. Bytes: the quickstart's
model at step 480 and ten steps later, trained here the first time (some minutes) and kept in the home folder. Times:
without --small on a model of 57 million parameters, trained here in the same way.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys

import torch
from checkpoint_rows import cost, gradient_log, places, restore, sizes, speed
from checkpoint_rows.row import Row, table

PARTS = {
    "bytes": sizes.rows,
    "log": gradient_log.rows,
    "speed": speed.rows,
    "places": places.rows,
    "cost": cost.rows,
    "restore": restore.rows,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--small", action="store_true", help="time the quickstart's model instead of a larger one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure these parts alone")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only:
        print(f"measuring {name}", file=sys.stderr)
        rows += PARTS[name](small=options.small)
    if options.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        print(json.dumps({"benchmark": "checkpoint", "machine": machine, "rows": rows}))
    else:
        print(table(rows))
    return 0 if all(row["pass"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
