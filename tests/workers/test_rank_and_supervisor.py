"""A real step loop and a real supervisor's parts, without Ray: what a person finds in the journal afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.fragile_store import FragileStore
from tests.support.one_rank import BATCH, CPU, SEQUENCE, tiny_config
from tests.support.run_kit import LIMIT_S, Staff
from tests.support.user_factories import Numbers

from stormsail.platform.journal import Journal
from stormsail.platform.messages import Heartbeat, HeartbeatReply, World
from stormsail.supervisor.report.build import build_report
from stormsail.workers.batches import BatchReader
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.inject import Injector
from stormsail.workers.loop import StepLoop
from stormsail.workers.session import Session
from stormsail.workers.snapshot import SnapshotWriter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.filterwarnings("ignore"),  # DeepSpeed's own
]

STEPS, SHORT, LONG, NAN = 70, range(25, 28), range(40, 340), 62
LOUD = 1.6  # times the loss


class Together:
    """One run from its first step to its end; its loss is too high in two windows, in the second until it is repaired."""

    def __init__(self, folder: Path) -> None:
        config = tiny_config(
            train={"steps": STEPS, "global_batch": BATCH},
            optimizer={"lr": 1e-4},
            checkpoint={"every_steps": 10, "good_after_steps": 3, "deadline_s": LIMIT_S},
            detect={"spike": {"least": 20}, "explosion": {"least": 20}, "forecast": False},
            ladder={"probation_steps": 10},
            drill={"faults": [{"kind": "nonfinite", "step": NAN, "where": "loss"}]},
        )
        store = FragileStore()
        self.staff = Staff(store, folder, config)
        self.staff.begin()
        directive = self.staff.decider.directive
        assert directive is not None
        beat = HeartbeatThread(self._heartbeat, attempt=1, rank=0, interval_s=0.001)
        snapshots = SnapshotWriter(
            store,
            rank=0,
            world_size=1,
            deliver=self.staff.hearing.part_written,
            missed=self._missed,
            deadline_s=LIMIT_S,
        )
        source = BatchReader(
            Numbers(),
            rank=0,
            world_size=1,
            global_batch=BATCH,
            micro_batch=config.train.micro_batch,
            sequence_tokens=SEQUENCE,
        )
        self.session = Session(
            config,
            World(1, 0, 1, "127.0.0.1", 1),
            device=CPU,
            store=store,
            samples=source.samples,
            supervisor=self.staff.answering,
            beat=beat,
            on_generation=snapshots.drop_before,
        )
        loop = StepLoop(
            self.session,
            source=source,
            supervisor=self.staff.answering,
            beat=beat,
            injector=Injector(config.drill.faults, rank=0, fired={}, announce=lambda *_: None),
            snapshots=snapshots,
        )
        with torch.nn.modules.module.register_module_forward_hook(self._loud):  # type: ignore[arg-type] # it may return
            self.outcome = loop.run(directive)
        snapshots.close(LIMIT_S)
        beat.close()
        self.session.engine.destroy()
        self.staff.close()
        self.events = Journal.read(store)

    def _heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        reply = self.staff.hearing.heartbeat(beat)
        assert not reply.abort  # it would end this process
        return reply

    def _missed(self, generation: int, step: int, why: str) -> None:
        raise AssertionError((generation, step, why))

    def _loud(self, module: torch.nn.Module, _args: object, losses: torch.Tensor) -> torch.Tensor | None:
        if self.session.directive.generation > 1 or module is not self.session.engine.module:
            return None
        step = self.session.position.step
        return losses * LOUD if step in SHORT or step in LONG else None

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]


@pytest.fixture(scope="module")
def run(one_rank: World, tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(tmp_path_factory.mktemp("together"))


def test_a_spike_that_heals_itself_is_a_warning_and_no_more(run: Together) -> None:
    steps = {event.step for event in run.of("spike.watch") if event.step is not None and event.step < LONG.start}
    assert steps
    assert steps <= set(SHORT)
    assert not [event for event in run.of("fault.detected") if event.step is not None and event.step < LONG.start]


def test_one_that_stays_is_rolled_back_from_before_its_onset_with_nobody_at_the_keyboard(run: Together) -> None:
    (fault,) = run.of("fault.detected")
    assert (fault.data["kind"], fault.data["onset"]) == ("spike", LONG.start)
    assert fault.step is not None
    assert fault.step < LONG.start + 10
    (decided,) = run.of("ladder.decided")
    assert decided.data["restore"]["step"] <= LONG.start - 10
    assert run.outcome == "done"
    assert [event.data["tier"] for event in run.of("episode.closed")] == ["resume"]


def test_a_number_that_is_not_finite_acts_at_once(run: Together) -> None:
    (dropped,) = run.of("update.dropped")
    assert (dropped.step, dropped.data["rank"]) == (NAN, 0)
    assert "non-finite loss" in dropped.data["reason"]


def test_the_three_are_told_apart_and_the_repair_is_reported(run: Together) -> None:
    told = {event.kind for event in run.events}
    assert {"spike.watch", "fault.detected", "update.dropped"} <= told
    report = build_report(run.events, [])
    assert [(incident.kind, incident.tier) for incident in report.incidents] == [("spike", 1)]
