"""The report as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from tests.support.tape import Tape

from stormsail.supervisor.report.build import build_report
from stormsail.supervisor.report.model import PhaseTimes


def test_a_report_is_plain_json() -> None:
    tape = Tape()
    tape.start()
    tape.steps(0, 3)
    report = replace(build_report(tape.events, tape.rows), final_loss=math.nan)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["final_loss"] is None
    assert data["checkpoints"]["committed"] == 0
    assert data["incidents"] == []
    assert data["drill"] is None


def test_the_phases_add_up() -> None:
    assert PhaseTimes(1.0, 2.0, 3.0, 4.0, 5.0).total_s == 15.0
