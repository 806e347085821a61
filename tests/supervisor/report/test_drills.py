"""Injected faults and what became of them."""

from __future__ import annotations

from tests.support.tape import Tape

from stormsail.platform.messages import CheckpointRef, FaultKind, Tier
from stormsail.supervisor.report.build import build_report
from stormsail.supervisor.report.drills import drill_entry
from stormsail.supervisor.report.model import DrillEntry, DrillFault, Twin

SAVED = CheckpointRef(1, 0)


def entry(tape: Tape) -> DrillEntry | None:
    return build_report(tape.events, tape.rows).drill


def healed(tape: Tape, kind: FaultKind, step: int, episode: int) -> None:
    tape.fault(kind, step)
    tape.decided(Tier.RESUME, SAVED, episode=episode)
    tape.restored(SAVED)
    tape.again(0, step - 1, step + 5)


def test_without_a_drill_there_is_no_entry() -> None:
    assert drill_entry([], {}, -1) is None


def test_each_fault_is_matched_with_the_incident_that_followed_it() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("drill.fired", step=10, index=0, kind="kill", rank=1)
    healed(tape, FaultKind.PROCESS, 10, 1)
    tape.note("drill.fired", step=16, index=1, kind="lr_instability", rank=0)
    healed(tape, FaultKind.SPIKE, 18, 2)
    drill = entry(tape)
    assert drill is not None
    assert (drill.fired, drill.recovered) == (2, 2)
    assert [fault.incident for fault in drill.faults] == [1, 2]


def test_a_fault_that_fires_again_after_a_repair_is_one_fault() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    for step in (10, 10):
        tape.note("drill.fired", step=step, index=0, kind="nonfinite", rank=1)
        healed(tape, FaultKind.NONFINITE, step, 1)
    drill = entry(tape)
    assert drill is not None
    assert (drill.fired, drill.recovered) == (1, 1)


def test_a_fault_of_another_class_is_not_taken_for_it() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("drill.fired", step=9, index=0, kind="nonfinite", rank=1)
    tape.note("drill.fired", step=10, index=1, kind="kill", rank=1)
    healed(tape, FaultKind.PROCESS, 10, 1)
    drill = entry(tape)
    assert drill is not None
    assert [fault.incident for fault in drill.faults] == [None, 1]
    assert drill.recovered == 2


def test_a_fault_without_a_repair_is_recovered_only_if_the_run_went_on() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("drill.fired", step=9, index=0, kind="nonfinite", rank=1)
    drill = entry(tape)
    assert drill is not None
    assert drill.faults == (DrillFault(index=0, kind="nonfinite", step=9, incident=None, recovered=False),)


def test_an_incident_after_the_next_fault_of_the_class_belongs_to_that_one() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("drill.fired", step=4, index=0, kind="nonfinite", rank=1)
    tape.note("drill.fired", step=10, index=1, kind="bf16_overflow", rank=1)
    healed(tape, FaultKind.NONFINITE, 10, 1)
    drill = entry(tape)
    assert drill is not None
    assert [fault.incident for fault in drill.faults] == [None, 1]


def test_a_used_up_ladder_is_not_recovered() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 9)
    tape.note("drill.fired", step=10, index=0, kind="raise", rank=0)
    tape.fault(FaultKind.USER_CODE, 10)
    tape.decided(Tier.EXHAUSTED, None)
    drill = entry(tape)
    assert drill is not None
    assert (drill.fired, drill.recovered) == (1, 0)


def test_the_twin_is_told_with_both_digests() -> None:
    tape = Tape()
    tape.note("drill.twin", step=20, digest="a", twin_digest="a", identical=True)
    drill = drill_entry(tape.events, {}, -1)
    assert drill is not None
    assert drill.twin == Twin(step=20, digest="a", twin_digest="a", identical=True)
