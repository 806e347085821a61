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
            against=f"the same loop without, steps of {found['step']:.1f} s",
            bars=(1.05, 1.01),
            by_ratio=True,
        ),
        make_row("core-seconds of a difference, on the other core", "s", found["core_s"], None),
        make_row("bytes of a difference", "B/parameter", found["bytes"] / found["parameters"], None),
    ]
