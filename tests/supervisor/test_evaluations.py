"""The best evaluation is the lowest one that the present run still stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import Staff, beat, lost_process, small_config

from stormsail.platform.checkpoint.evaluated import Evaluated
from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.journal import Journal
from stormsail.platform.messages import Phase
from stormsail.supervisor.evaluations import is_lowest
from stormsail.supervisor.phases import RunEvent
from stormsail.supervisor.record import Record

FIRST = Generation(1, None, 0, "", "", 0.0)


def evaluated(*losses: float) -> tuple[Evaluated, ...]:
    return tuple(Evaluated(1, 10 * place, loss, "a") for place, loss in enumerate(losses, start=1))


def new(loss: float | None, *, generation: int = 1, eval_set: str = "a") -> dict[str, Any]:
    return {"step": 50, "generation": generation, "loss": loss, "eval_set": eval_set}


def test_what_was_rolled_back_counts_no_more() -> None:
    known = Record(generations=(FIRST, Generation(2, 1, 20, "", "", 0.0)), evaluations=evaluated(3.0, 2.0, 1.0))
    assert is_lowest(new(1.5, generation=2), known)
    assert not is_lowest(new(0.5), known)


def test_what_was_lower_over_other_samples_is_no_measure() -> None:
    known = Record(generations=(FIRST,), evaluations=evaluated(3.0, 2.0))
    assert is_lowest(new(4.0, eval_set="b"), known)


@pytest.mark.parametrize(("loss", "lowest"), [(1.9, True), (2.0, False), (None, False)])
def test_only_what_is_below_all_before_is_the_lowest(loss: float | None, lowest: bool) -> None:
    assert is_lowest(new(loss), Record(generations=(FIRST,), evaluations=evaluated(3.0, 2.0))) is lowest
    assert is_lowest(new(loss), Record(generations=(FIRST,))) is (loss is not None)


def test_the_journal_says_of_each_whether_it_was_the_lowest_so_far(tmp_path: Path) -> None:
    staff = Staff(FragileStore(), tmp_path, small_config())
    staff.begin()

    def say(number: int, step: int, loss: float | None, generation: int = 1) -> None:
        fields = {**new(loss, generation=generation), "step": step, "samples": 4, "took_s": 1.0}
        line = (number, "evaluation.finished", fields)
        staff.hearing.heartbeat(beat(step=step, generation=generation, lines=(line,)))

    staff.checkpoint(10)
    for number, (step, loss) in enumerate([(10, 3.0), (20, None), (30, 2.0), (40, 2.5)], start=1):
        say(number, step, loss)
    staff.ledger.move(RunEvent.STEPPING)
    staff.ledger.move(RunEvent.FAULT)
    staff.decider.decide(lost_process(45))
    say(5, 20, 2.8, generation=2)
    staff.hearing.heartbeat(beat(phase=Phase.EVALUATE, step=30, generation=2))
    staff.ledger.move(RunEvent.STEPPING)
    waiting = staff.hearing.waiting()
    staff.close()
    assert waiting is not None
    assert waiting.what == "the evaluation after step 30"
    told = [(event.step, event.data["lowest"]) for event in Journal.read(staff.store) if "lowest" in event.data]
    assert told == [(10, True), (20, False), (30, True), (40, False), (20, True)]
    assert [found.step for found in staff.ledger.record.evaluations] == [10, 30, 40, 20]
