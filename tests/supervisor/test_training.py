"""How a run ended, told as an error with the right exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_kit import Staff

from stormsail.platform.errors import (
    ClusterError,
    LadderExhaustedError,
    StoppedError,
    StormsailError,
    TryLaterError,
    UserCodeError,
)
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.training import raise_outcome

Played = Callable[[Callable[[Staff], None]], RunPlace]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))


def ended(played: Played, kind: str, **data: Any) -> StormsailError:
    place = played(lambda staff: (staff.ledger.note(kind, step=7, **data), None)[-1])
    with pytest.raises(StormsailError) as caught:
        raise_outcome(place, None)
    return caught.value


def test_a_run_that_finished_raises_nothing(past: RunPlace) -> None:
    raise_outcome(past, None)


def test_what_ended_the_supervisor_itself_comes_first(past: RunPlace) -> None:
    with pytest.raises(ClusterError):
        raise_outcome(past, ClusterError("no room"))


def test_a_stop_on_request_is_exit_code_5_and_says_how_to_go_on(played: Played) -> None:
    error = ended(played, "run.stopped", reason="enough", digest=None, exit_code=5)
    assert isinstance(error, StoppedError)
    assert "stopped at step 7, saved is step 7: enough" in str(error)
    assert "stormsail train" in str(error)


def test_a_ladder_that_is_used_up_is_exit_code_4_and_names_the_report(played: Played) -> None:
    error = ended(played, "run.exhausted", reason="every tier was tried", exit_code=4)
    assert isinstance(error, LadderExhaustedError)
    assert "stormsail report run" in str(error)
    assert "every repair was tried" in str(error)


def test_a_run_that_stops_without_a_repair_says_so(played: Played) -> None:
    error = ended(played, "run.exhausted", reason="ladder.on_anomaly is `stop`", tried=False, exit_code=4)
    assert isinstance(error, LadderExhaustedError)
    assert "every repair" not in str(error)
    assert "ladder.on_anomaly is `stop`" in str(error)


def test_an_error_of_the_users_code_comes_back_with_its_traceback(played: Played) -> None:
    error = ended(played, "run.failed", error="ValueError: typo", details="Traceback ...", exit_code=6)
    assert isinstance(error, UserCodeError)
    assert error.details == "Traceback ..."
    assert "runs/run/1/logs" in str(error)


@pytest.mark.parametrize(("code", "family"), [(75, TryLaterError), (1, StormsailError)])
def test_other_failures_keep_their_exit_code(played: Played, code: int, family: type[StormsailError]) -> None:
    error = ended(played, "run.failed", error="no room", exit_code=code)
    assert isinstance(error, family)
    assert error.exit_code == code
