"""Which checkpoints the ladder sees."""

from __future__ import annotations

from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.messages import CheckpointRef
from stormsail.supervisor.candidates import CandidateCheckpoint
from stormsail.supervisor.checkpoint_view import live_candidates
from stormsail.supervisor.record import CommittedCheckpoint, Record

FIRST = Generation(1, None, 0, "start", "test", 1.0)
SECOND = Generation(2, 1, 20, "rollback", "test", 2.0)


def committed(generation: int, step: int, *, finite: bool = True) -> CommittedCheckpoint:
    return CommittedCheckpoint(CheckpointRef(generation, step), "d", 1.0, finite)


def seen(record: Record) -> list[tuple[int, int]]:
    return [(candidate.ref.generation, candidate.ref.step) for candidate in live_candidates(record)]


def test_they_come_oldest_step_first_and_say_whether_they_are_good() -> None:
    record = Record(
        generations=(FIRST,), commits=(committed(1, 20), committed(1, 10)), good=frozenset({CheckpointRef(1, 10)})
    )
    assert live_candidates(record) == [
        CandidateCheckpoint(CheckpointRef(1, 10), good=True),
        CandidateCheckpoint(CheckpointRef(1, 20), good=False),
    ]


def test_what_lies_beyond_a_fork_is_not_seen() -> None:
    record = Record(generations=(FIRST, SECOND), commits=(committed(1, 20), committed(1, 30), committed(2, 30)))
    assert seen(record) == [(1, 20), (2, 30)]


def test_neither_numbers_that_are_not_finite_nor_damaged_objects_are_seen() -> None:
    record = Record(
        generations=(FIRST,),
        commits=(committed(1, 10), committed(1, 20, finite=False), committed(1, 30)),
        corrupt=frozenset({CheckpointRef(1, 30)}),
    )
    assert seen(record) == [(1, 10)]


def test_a_run_without_a_past_has_none() -> None:
    assert live_candidates(Record()) == []
