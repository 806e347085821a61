"""What these tests share: a run that has happened, on a real store, to be read again, one that goes on, and whole ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.crew import Place
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import LIMIT_S, Staff, beat, small_config, within

from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.messages import FaultKind, Incident
from stormsail.platform.runs import RunPlace, begin_incarnation
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.phases import RunEvent

Play = Callable[[Staff], None]


@pytest.fixture
def root(tmp_path: Path) -> StoreAddress:
    """A store for runs."""
    return StoreAddress(f"file://{tmp_path}/store")


@pytest.fixture
def played(tmp_path: Path, root: StoreAddress) -> Callable[[Play], RunPlace]:
    """Plays a run named `run`; gives its place."""

    def play(how: Play) -> RunPlace:
        place = begin_incarnation(root, "run")
        staff = Staff(place.store(), tmp_path / "local")
        staff.ledger.note(
            "run.started", config=dump_config(staff.config), owner="host pid 1", stop_step=None, changes=[]
        )
        staff.decider.start()
        staff.ledger.move(RunEvent.RESOURCES_READY)
        staff.ledger.note("attempt.started", attempt=1, workers=2)
        staff.hearing.begin(1)
        how(staff)
        staff.ledger.flush(LIMIT_S)
        staff.close()
        return place

    return play


def eventful(staff: Staff) -> None:
    """Thirty steps, two checkpoints, a spike at 25 that is healed from step 20, and the end at 30."""
    staff.steps(0, 9)
    staff.checkpoint(10)
    staff.steps(10, 19)
    staff.checkpoint(20)
    staff.steps(20, 22)
    staff.checkpoint(23)
    staff.steps(23, 24, flagged=True)
    line = (1, "spike.watch", {"step": 24, "severity": 7.0, "reason": "loss z 7.0"})
    staff.hearing.heartbeat(beat(step=24, lines=(line,)))
    incident = Incident(1, 25, 21, FaultKind.SPIKE, 14.0, {"reason": "loss z 14.0", "rank": -1, "parameter": ""})
    staff.answering.incident(incident)
    staff.steps(20, 29)
    staff.checkpoint(30)
    staff.ledger.note("run.finished", step=30, applied=30, digest="d" * 32, exit_code=0)


@pytest.fixture
def past(played: Callable[[Play], RunPlace]) -> RunPlace:
    """A finished run with a spike."""
    return played(eventful)


@pytest.fixture
def config() -> RunConfig:
    """The run of `staff`; a test file with another one says so."""
    return small_config()


@pytest.fixture
def staff(tmp_path: Path, config: RunConfig) -> Iterator[Staff]:
    """Workers do steps of generation 1, on a store that can go away."""
    made = Staff(FragileStore(), tmp_path, config)
    made.begin()
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where the whole run of a crew lives; afterwards none of its threads does."""
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))
    yield Place(tmp_path)
    named = ("stormsail-tick", "stormsail-committer", "stormsail-evidence")
    assert within(lambda: not [t for t in threading.enumerate() if t.name in named])
