"""Which rank is to blame for a hang."""

from __future__ import annotations

import json

import pytest

from stormsail.supervisor.evidence.blame import find_blame, last_collective, training_stack
from stormsail.supervisor.evidence.found import Found

WAITING = """Python v3.11.7 (/usr/bin/python3.11)

Thread 100 (idle): "MainThread"
    main_loop (ray/_private/worker.py:1000)
    <module> (ray/_private/workers/default_worker.py:300)
Thread 200 (idle): "TrainingThread"
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:4100)
    wrapper (torch/distributed/c10d_logger.py:81)
    exchange (stormsail/workers/vitals.py:140)
    _step (stormsail/workers/loop.py:96)
    worker_main (stormsail/workers/entry.py:73)
"""
BUSY = """Current thread 0x00007efcae7c0b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 12 in wait
Thread 0x00007efcae7c0b81 (most recent call first):
  File "/home/me/data.py", line 7 in sample
  File "/x/stormsail/workers/loop.py", line 110 in _compute
  File "/x/stormsail/workers/entry.py", line 73 in worker_main
"""


def found(rank: int, stacks: str = WAITING, state: str = "S (sleeping)") -> Found:
    return Found(rank, state, "", stacks, "py-spy", "")


def flight(*numbers: int) -> str:
    return json.dumps({"entries": [{"collective_seq_id": number} for number in numbers]})


@pytest.mark.parametrize(("stacks", "first"), [(WAITING, "all_gather_into_tensor"), (BUSY, "sample")])
def test_the_training_thread_is_found_in_both_forms(stacks: str, first: str) -> None:
    assert training_stack(stacks)[0].function == first


def test_a_text_without_a_training_thread_gives_nothing() -> None:
    assert training_stack(WAITING.replace("worker_main", "elsewhere")) == []
    assert training_stack("") == []


def test_a_stopped_process_is_to_blame() -> None:
    finding = find_blame([found(0), found(1, state="T (stopped)")], {})
    assert finding.rank == 1
    assert finding.text == "the process of rank 1 is stopped (by a signal or a debugger)"
    assert finding.places[1] == "stopped, last in all_gather_into_tensor (distributed/distributed_c10d.py:4100)"
    assert finding.places[0].startswith("waiting in all_gather_into_tensor, called from")


def test_a_process_that_is_gone_is_to_blame() -> None:
    finding = find_blame([found(0), found(1, "", "gone")], {})
    assert (finding.rank, finding.text) == (1, "the process of rank 1 is gone")


def test_the_one_that_waits_for_nobody_is_to_blame() -> None:
    finding = find_blame([found(0), found(1, BUSY), found(2)], {})
    assert finding.rank == 1
    assert finding.text == ("rank 1 is in no collective while the others wait in one; it is sample (me/data.py:7)")


def test_the_one_that_has_begun_fewer_collectives_is_to_blame() -> None:
    finding = find_blame([found(0), found(1)], {0: flight(7, 8, 9), 1: flight(7, 8)})
    assert finding.rank == 1
    assert finding.text.startswith("rank 1 has begun 8 collectives, others 9")


@pytest.mark.parametrize(
    "flights", [{}, {0: flight(9), 1: flight(9)}, {0: flight(9), 1: flight(8), 2: flight(8)}, {0: "no JSON"}]
)
def test_nobody_is_blamed_without_a_reason(flights: dict[int, str]) -> None:
    finding = find_blame([found(0), found(1), found(2)], flights)
    assert (finding.rank, finding.text) == (-1, "the evidence blames no single rank")


def test_a_rank_that_could_not_be_seen_has_no_place() -> None:
    assert find_blame([found(0, "")], {}).places == {0: "unknown"}


@pytest.mark.parametrize(("text", "number"), [(flight(1, 5, 3), 5), (flight(), None), ("", None), ("[]", None)])
def test_the_newest_collective_of_a_flight_record(text: str, number: int | None) -> None:
    assert last_collective(text) == number
