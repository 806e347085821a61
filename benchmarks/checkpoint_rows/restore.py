"""The time of a restore from S3, beside DeepSpeed's files fetched from the same server and loaded."""

from __future__ import annotations

from checkpoint_rows.child import run_child
from checkpoint_rows.row import Row, make_row

_THEIRS = "DeepSpeed's files fetched from the same server, then loaded"


def rows(*, small: bool) -> list[Row]:
    """One rank, on the quickstart's model if `small`, else on one of 57 million parameters; medians."""
    found = run_child("store_reference.py", small=small)
    million = f"{found['parameters'] / 1e6:.1f} M parameters"
    return [
        make_row(
            f"restore from S3, {what}, {million}",
            "s",
            found[name],
            found["deepspeed"],
            against=_THEIRS,
            bars=(1.0, 1 / 1.5),
            by_ratio=True,
        )
        for name, what in (
            ("keyframe", "keyframe"),
            ("difference", "keyframe and difference"),
            ("rounded", "keyframe and difference, rounding mode"),
        )
    ]
