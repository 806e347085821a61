"""The last line of a drill: everything proven and repaired, or not."""

from __future__ import annotations

import pytest

from stormsail.supervisor.report.model import DrillEntry, Twin
from stormsail.supervisor.report.verdict import drill_verdict

IDENTICAL = Twin(60, "a", "a", identical=True)
DIFFERENT = Twin(60, "a", "b", identical=False)


@pytest.mark.parametrize(
    ("drill", "proof_wanted", "line", "passed"),
    [
        (
            DrillEntry(fired=3, recovered=3, faults=(), twin=IDENTICAL),
            True,
            "demo: identical yes, recovered 3 of 3",
            True,
        ),
        (
            DrillEntry(fired=3, recovered=3, faults=(), twin=DIFFERENT),
            True,
            "demo: identical no, recovered 3 of 3",
            False,
        ),
        (DrillEntry(fired=3, recovered=3, faults=(), twin=None), True, "demo: identical no, recovered 3 of 3", False),
        (
            DrillEntry(fired=3, recovered=2, faults=(), twin=IDENTICAL),
            True,
            "demo: identical yes, recovered 2 of 3",
            False,
        ),
        (DrillEntry(fired=3, recovered=3, faults=(), twin=None), False, "demo: recovered 3 of 3", True),
        (None, False, "demo: recovered 0 of 3", False),
    ],
)
def test_a_drill_is_passed_when_all_was_repaired_and_the_proof_that_was_asked_for_holds(
    drill: DrillEntry | None, proof_wanted: bool, line: str, passed: bool
) -> None:
    verdict = drill_verdict(drill, declared=3, proof_wanted=proof_wanted)
    assert (verdict.line, verdict.passed) == (line, passed)


def test_faults_that_never_fired_were_not_passed() -> None:
    assert not drill_verdict(
        DrillEntry(fired=1, recovered=1, faults=(), twin=None), declared=2, proof_wanted=False
    ).passed
