"""Evidence is gathered before anything is ended, and nothing is ended that moves again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import Staff, beat, data_of, join_request, kinds, small_config

from stormsail.platform.journal import Journal
from stormsail.supervisor.evidence.collecting import HangCollector
from stormsail.supervisor.evidence.found import Found, Target

LIMIT_S = 20.0


@dataclass
class Eyes:
    """Sees what a test has put before them, and lets the ranks do something meanwhile."""

    staff: Staff
    state: str = "S (sleeping)"
    seen: list[Target] = field(default_factory=list)
    moves: bool = False
    broken: bool = False

    def __call__(self, targets: Sequence[Target], _limit_s: float) -> list[Found]:
        self.seen += targets
        if self.broken:
            raise ValueError("no eyes")
        if self.moves:
            self.staff.hearing.heartbeat(beat(rank=1, step=99))
        for rank in (0, 1):
            self.staff.hearing.heartbeat(beat(rank=rank, step=99 if self.moves else 4, flight='{"entries": []}'))
        return [Found(target.rank, self.state if target.rank == 1 else "S", "", "", "none", "") for target in targets]


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    made = Staff(FragileStore(), tmp_path, small_config(cluster={"workers": 2, "step_timeout_s": 1e-9}))
    made.begin()
    for rank in (0, 1):
        made.hearing.join(join_request(rank))
    made.steps(0, 3)
    yield made
    made.close()


@pytest.fixture
def eyes(staff: Staff) -> Eyes:
    return Eyes(staff)


@pytest.fixture
def collector(staff: Staff, eyes: Eyes, tmp_path: Path) -> HangCollector:
    return HangCollector(
        staff.ledger,
        staff.hearing,
        staff.store,
        tmp_path / "run",
        members=staff.membership.members,
        look=eyes,
        limit_s=LIMIT_S,
    )


def hang(staff: Staff, collector: HangCollector) -> None:
    for rank in (1, 0):
        staff.hearing.heartbeat(beat(rank=rank, step=4))
    while staff.hearing.find_stuck() is None:
        pass
    collector.watch()
    collector.close(LIMIT_S)


def test_the_attempt_is_ended_after_the_evidence_is_kept(
    staff: Staff, collector: HangCollector, eyes: Eyes, tmp_path: Path
) -> None:
    eyes.state = "T (stopped)"
    hang(staff, collector)
    noted = data_of(Journal.read(staff.store), "hang.evidence")
    assert staff.hearing.abort.startswith("the process of rank 1 is stopped")
    assert staff.hearing.stuck_rank == noted["rank"] == 1
    assert [target.log_folder for target in eyes.seen] == [str(tmp_path / "run" / "logs" / "attempt-1")] * 2
    names = ["rank-0.txt", "rank-1.txt", "flight-0.json", "flight-1.json", "vitals.json"]
    assert noted["keys"] == [f"evidence/1/4/{name}" for name in names]
    assert [staff.store.get(key) for key in noted["keys"]] == [
        (Path(noted["folder"]) / name).read_bytes() for name in names
    ]


def test_the_last_vitals_tell_where_each_rank_is_and_the_last_rows(staff: Staff, collector: HangCollector) -> None:
    hang(staff, collector)
    vitals = json.loads(staff.store.get("evidence/1/4/vitals.json"))
    assert vitals["ranks"]["1"]["step"] == 4
    assert [row["step"] for row in vitals["rows"]] == [0, 1, 2, 3]


def test_ranks_that_move_again_meanwhile_are_left_alone(staff: Staff, collector: HangCollector, eyes: Eyes) -> None:
    eyes.moves = True
    staff.hearing._limits = staff.hearing._limits.__class__(0.2, 60.0)
    hang(staff, collector)
    assert staff.hearing.abort == ""
    assert "hang.cleared" in kinds(Journal.read(staff.store))


def test_a_hang_ends_even_where_no_evidence_can_be_gathered(
    staff: Staff, collector: HangCollector, eyes: Eyes, capsys: pytest.CaptureFixture[str]
) -> None:
    eyes.broken = True
    hang(staff, collector)
    assert "rank 1 has been in phase step" in staff.hearing.abort
    assert "no eyes" in capsys.readouterr().err


def test_with_the_store_away_the_evidence_is_on_this_machine_and_that_is_said(
    staff: Staff, collector: HangCollector
) -> None:
    store = staff.store
    assert isinstance(store, FragileStore)
    store.go_down()
    hang(staff, collector)
    store.come_back()
    staff.ledger.flush(LIMIT_S)
    noted = data_of(Journal.read(store), "hang.evidence")
    assert "the store did not take it" in noted["problem"]
    assert (Path(noted["folder"]) / "vitals.json").is_file()


def test_one_hang_is_answered_once(staff: Staff, collector: HangCollector) -> None:
    hang(staff, collector)
    collector.watch()
    collector.close(LIMIT_S)
    assert kinds(Journal.read(staff.store)).count("hang.suspected") == 1


def test_a_hang_of_an_attempt_that_is_over_ends_no_other(staff: Staff) -> None:
    staff.hearing.end_attempt(7, "late", rank=0)
    assert staff.hearing.abort == ""


def test_in_shadow_mode_a_hang_is_told_once_and_left_alone(staff: Staff, collector: HangCollector, eyes: Eyes) -> None:
    collector._shadow = True
    eyes.state = "T (stopped)"
    hang(staff, collector)
    collector.watch()
    collector.close(LIMIT_S)
    events = Journal.read(staff.store)
    assert staff.hearing.abort == ""
    assert kinds(events).count("hang.shadowed") == 1
    assert data_of(events, "hang.shadowed")["rank"] == 1
