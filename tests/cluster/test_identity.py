"""A run that was killed five times, and one that was stopped three times, hold the bits of one that nothing disturbed."""

from __future__ import annotations

import pytest

from stormsail.supervisor.reading import ReadRun
from tests.support.machine import Machine, final_rows, of_kind

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

# Far enough apart that each lies beyond a step that the one before had not reached: none is a relapse of another.
KILLS = [
    {"kind": "kill", "step": 4, "rank": 0},  # before the first checkpoint
    {"kind": "kill", "step": 20, "rank": 1, "during": "save"},
    {"kind": "kill", "step": 33, "rank": 1},
    {"kind": "kill", "step": 40, "rank": 0, "during": "save"},
    {"kind": "kill", "step": 56, "rank": 0},
]


@pytest.fixture(scope="module")
def killed(machine: Machine) -> ReadRun:
    machine.run("train", machine.write("killed", drill={"faults": KILLS}), timeout_s=360.0)
    return machine.read("killed")


def test_five_kills(killed: ReadRun, straight: ReadRun) -> None:
    for e in killed.events: print(e.number, round(e.time_s - killed.events[0].time_s,2), e.kind, e.step, {k: v for k, v in e.data.items() if k not in ("config","state")})
    print([(r["generation"], r["step"], r["loss"], round(r["step_s"],4)) for r in killed.rows])
    assert killed.record.outcome == "finished"
    for step, row in final_rows(straight).items():
        assert final_rows(killed)[step]["loss"] == row["loss"]
    print(of_kind(killed.events, "run.finished")[-1].data, of_kind(straight.events, "run.finished")[-1].data)
    for e in straight.events: print(e.number, round(e.time_s - straight.events[0].time_s,2), e.kind, e.step, {k: v for k, v in e.data.items() if k not in ("config","state")})
    assert 0
