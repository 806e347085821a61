"""A worker's calls and a supervisor's real parts, Ray's wire between them played; tests/cluster has the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import Staff, checkpoint_meta, join_request, written_part

from stormsail.platform.errors import ConfigError, StormsailError, WorkerFaultError
from stormsail.platform.messages import CheckpointRef, FaultKind, Incident, WorkerFailure
from stormsail.workers.supervisor_link import SupervisorLink

FAILURE = WorkerFailure(1, 0, 7, "ours", "InternalError: x", "Traceback", 1, 1.0)
SPIKE = Incident(1, 9, 9, FaultKind.SPIKE, 14.0, {"reason": "z 14"})


class Actor:
    """A handle: each method gives a reference, which is the call itself."""

    def __init__(self, *parts: object) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        method = next(getattr(part, name) for part in self._parts if hasattr(part, name))
        return SimpleNamespace(remote=lambda *args: lambda: method(*args))


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    made = Staff(FragileStore(), tmp_path)
    made.begin()
    yield made
    made.close()


@pytest.fixture
def link(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> SupervisorLink:
    def get(call: Callable[[], object], timeout: float) -> object:
        assert timeout > 0
        try:
            return call()
        except StormsailError as error:
            raise RayTaskError("method", "its traceback", error) from error

    monkeypatch.setattr(ray, "get", get)
    return SupervisorLink(Actor(staff.hearing, staff.answering), 0)


def test_who_asks_for_a_place_gets_it_when_all_have_come(staff: Staff, link: SupervisorLink) -> None:
    staff.hearing.join(join_request(1))
    placement = link.join(join_request(0), limit_s=60.0)
    assert (placement.world.rank, placement.world.world_size) == (0, 2)


def test_a_world_that_is_not_formed_in_time_is_a_lost_peer(link: SupervisorLink) -> None:
    with pytest.raises(WorkerFaultError, match="no world was formed within 0 s"):
        link.join(join_request(0), limit_s=0.0)


def test_an_error_of_the_supervisor_comes_back_as_what_it_is(staff: Staff, link: SupervisorLink) -> None:
    staff.hearing.join(join_request(1, data="abc"))
    with pytest.raises(ConfigError, match="reads other data"):
        link.join(join_request(0, data="xyz"), limit_s=60.0)


def test_what_rank_0_asks_is_answered_with_a_directive(staff: Staff, link: SupervisorLink) -> None:
    staff.steps(0, 9)
    staff.checkpoint(5, good=True)
    assert link.incident(SPIKE).restore == CheckpointRef(1, 5)
    assert link.restore_failed(CheckpointRef(1, 5), "torn").restore is None


def test_what_a_worker_tells_is_heard(staff: Staff, link: SupervisorLink) -> None:
    link.worker_failed(FAILURE)
    link.drill_fired(0, "nonfinite", 7)
    assert staff.hearing.failures == [FAILURE]
    part = written_part(staff.store, CheckpointRef(1, 10), 0)
    assert link.part_written(part, checkpoint_meta(10), 0.1) is None


@pytest.mark.parametrize("error", [RayActorError(), GetTimeoutError("too late")])
def test_a_supervisor_that_does_not_answer_is_a_lost_peer_and_no_save_and_no_last_word_fails_of_it(
    error: Exception,
    staff: Staff,
    link: SupervisorLink,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def silence(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", silence)
    with pytest.raises(WorkerFaultError, match=r"did not answer 'incident' within 600 s"):
        link.incident(SPIKE)
    with pytest.raises(WorkerFaultError, match=r"did not answer 'drill_fired' within 120 s"):
        link.drill_fired(0, "kill", 7)
    part = written_part(staff.store, CheckpointRef(1, 10), 0)
    assert link.part_written(part, None, 0.1) == str(error)
    link.worker_failed(FAILURE)
    assert "did not hear of this failure" in capsys.readouterr().err
