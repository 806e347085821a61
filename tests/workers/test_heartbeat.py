"""The line from a worker to its supervisor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import ray

from stormsail.platform.errors import StorageFullError
from stormsail.platform.messages import Heartbeat, HeartbeatReply, Phase, StepRow
from stormsail.workers.heartbeat import HeartbeatThread, supervisor_sender


def row(step: int) -> StepRow:
    return StepRow(1, step, step + 1, 2.0, 0.5, 0.5, 1e-3, 1.0, 100, 0.1, 0.0, "bf16", "applied")


class Ear:
    """Hears heartbeats; can be away for a while."""

    def __init__(self) -> None:
        self.beats: list[Heartbeat] = []
        self.away = False
        self.reply = HeartbeatReply()
        self.heard = threading.Event()

    def __call__(self, beat: Heartbeat) -> HeartbeatReply:
        if self.away:
            raise ConnectionError("away")
        self.beats.append(beat)
        self.heard.set()
        return self.reply


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def line(ear: Ear) -> Iterator[HeartbeatThread]:
    thread = HeartbeatThread(ear, attempt=3, rank=1, interval_s=0.01)
    yield thread
    thread.close()


def test_rows_and_lines_arrive_once_and_in_order(ear: Ear, line: HeartbeatThread) -> None:
    for step in range(20):
        line.row(row(step))
        line.line("spike.watch", step=step)
    line.close()
    assert [r.step for beat in ear.beats for r in beat.rows] == list(range(20))
    assert [number for beat in ear.beats for number, _, _ in beat.lines] == list(range(1, 21))


def test_nothing_is_lost_while_the_supervisor_is_away(ear: Ear, line: HeartbeatThread) -> None:
    ear.away = True
    line.row(row(1))
    line.flush()
    line.row(row(2))
    ear.away = False
    line.flush()
    assert [r.step for beat in ear.beats for r in beat.rows] == [1, 2]


def test_the_details_of_a_row_are_worked_out_by_the_thread_that_sends() -> None:
    heard, threads = Ear(), list[str]()

    def details() -> dict[str, float]:
        threads.append(threading.current_thread().name)
        return {"clip.factor": 0.5}

    line = HeartbeatThread(heard, attempt=1, rank=0, interval_s=0.001)
    line.row(row(1), details)
    line.close()
    rows = [one for beat in heard.beats for one in beat.rows]
    assert [one.values for one in rows] == [{"clip.factor": 0.5}]
    assert threads == ["stormsail-heartbeat"]


def test_where_the_rank_is_goes_with_every_beat(ear: Ear, line: HeartbeatThread) -> None:
    line.at(Phase.STEP, 41, generation=7, rank=0)
    line.flush()
    beat = ear.beats[-1]
    assert (beat.attempt, beat.generation, beat.rank, beat.phase, beat.step) == (3, 7, 0, Phase.STEP, 41)


def test_a_request_to_stop_is_kept_once_it_was_heard(ear: Ear, line: HeartbeatThread) -> None:
    ear.reply = HeartbeatReply(stop_requested="by hand")
    line.flush()
    ear.reply = HeartbeatReply()
    line.flush()
    assert line.stop_requested == "by hand"


def test_the_last_collectives_are_sent_once_for_each_time_that_they_are_asked_for(ear: Ear) -> None:
    line = HeartbeatThread(ear, attempt=3, rank=1, interval_s=0.01, flight=lambda: '{"entries": []}')
    ear.reply = HeartbeatReply(evidence=True)
    limit = time.monotonic() + 10.0
    while not any(beat.flight for beat in ear.beats) and time.monotonic() < limit:
        time.sleep(0.01)
    line.flush()
    line.close()
    assert [beat.flight for beat in ear.beats if beat.flight] == ['{"entries": []}']


def test_a_flight_recorder_that_fails_says_so(ear: Ear) -> None:
    def broken() -> str:
        raise RuntimeError("no recorder")

    line = HeartbeatThread(ear, attempt=3, rank=1, interval_s=60.0, flight=broken)
    line._record_flight()
    line.close()
    assert [beat.flight for beat in ear.beats if beat.flight] == ["the flight recorder gave nothing: no recorder"]


def test_an_order_to_leave_ends_the_process(ear: Ear, line: HeartbeatThread, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr("os._exit", left.append)
    ear.reply = HeartbeatReply(abort="attempt 2 is over")
    line.flush()
    ear.reply = HeartbeatReply()  # before the real exit comes back
    assert left
    assert set(left) == {75}


def test_a_supervisor_whose_disk_is_full_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, but could not note what it heard: that is said again, and no reason for a worker to end."""

    class Supervisor:
        class heartbeat:  # noqa: N801 - as Ray shows an actor's method
            @staticmethod
            def remote(_beat: Heartbeat) -> None: ...

    def get(_ref: object, *, timeout: float) -> HeartbeatReply:
        raise StorageFullError(f"No space left, heard within {timeout} s")

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(ConnectionError, match="No space left"):
        supervisor_sender(Supervisor(), timeout_s=1.0)(Heartbeat(1, 1, 0, Phase.STEP, 3, (), ()))
