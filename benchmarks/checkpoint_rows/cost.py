"""What a difference every ten steps costs a training loop on a core of its own."""

from __future__ import annotations

from checkpoint_rows.child import run_child
from checkpoint_rows.row import Row, make_row


def rows(*, small: bool) -> list[Row]:
    """One rank, on the quickstart's model if `small`, else on one of 57 million parameters."""
    found = run_child("cost_reference.py", small=small)
    million = f"{found['parameters'] / 1e6:.1f} M parameters"
    return [
        make_row(
            f"ten steps with a difference, {million}",
            "s",
            found["with"],
            found["without"],
            against=f"the same loop without, steps of {found['step']:.1f} s; {_spread(found)}",
            bars=(1.05, 1.01),
            by_ratio=True,
        ),
        make_row(
            "core-seconds of a difference, on the other core, without the S3 server's", "s", found["core_s"], None
        ),
        make_row("bytes of a difference", "B/parameter", found["bytes"] / found["parameters"], None),
    ]


def _spread(found: dict[str, float]) -> str:
    return f"slowest minus fastest: {found['with_spread']:.2f} s with, {found['without_spread']:.2f} s without"
