"""The last line of a drill: was everything proven and repaired; pure."""

from __future__ import annotations

from dataclasses import dataclass

from stormsail.supervisor.report.model import DrillEntry


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """Whether a drill was passed.

    Attributes:
        line: What is printed last.
        passed: All declared faults fired and were recovered from, and the proof, if asked for, holds.
    """

    line: str
    passed: bool


def drill_verdict(drill: DrillEntry | None, *, declared: int, proof_wanted: bool) -> DrillVerdict:
    """Judge a drill.

    Args:
        drill: What the report says of it; None where nothing fired.
        declared: How many faults the configuration declares.
        proof_wanted: Whether a twin was asked for.
    """
    recovered = drill.recovered if drill else 0
    identical = drill is not None and drill.twin is not None and drill.twin.identical
    proof = f"identical {'yes' if identical else 'no'}, " if proof_wanted else ""
    return DrillVerdict(
        line=f"demo: {proof}recovered {recovered} of {declared}",
        passed=recovered == declared and (identical or not proof_wanted),
    )
