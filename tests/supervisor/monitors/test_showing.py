"""The registry and readings, as JSON and as text."""

from __future__ import annotations

import json
import math

from tests.support.monitored import START_S, happened, steps, view

from stormsail.supervisor.monitors.showing import (
    readings_json,
    readings_of,
    render_readings,
    render_table,
    table_json,
)
from stormsail.supervisor.monitors.table import ITEMS

RUN = view(
    steps(40, loss=lambda step: math.nan if step == 39 else 3.0),
    happened((0, "run.x", {}), (5, "checkpoint.corrupt", {"generation": 1, "step": 3})),
)


def test_the_table_has_every_item() -> None:
    assert [item["name"] for item in table_json("default")] == [item.name for item in ITEMS]
    text = render_table("default")
    assert all(item.name in text for item in ITEMS)


def test_readings_have_value_level_and_since() -> None:
    found = {item["name"]: item for item in readings_json(readings_of(RUN, "default"))}
    json.dumps(found, allow_nan=False)
    assert (found["loss.value"]["value"], found["loss.value"]["level"]) == ("nan", "danger")
    assert found["state.damaged"]["since_s"] == START_S + 5
    assert found["model.activation"]["level"] == "absent"


def test_what_needs_a_person_stands_on_top_with_what_to_do() -> None:
    lines = render_readings(readings_of(RUN, "default"), now_s=START_S + 65).splitlines()
    assert "in danger" in lines[0]
    top = "\n".join(lines[1 : lines.index("")])
    assert "X loss.value" in top
    assert "! state.damaged" in top
    assert "for 60 s" in top
    assert "docs/runbook.md#damaged-checkpoint" in top
    assert "optimizer.lr_factor" not in top
