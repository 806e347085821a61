"""What processes say to each other: frozen values that survive the way, and two small facts about the words."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from stormsail.platform import messages
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    FaultKind,
    Heartbeat,
    Incident,
    LrEvent,
    Phase,
    Placement,
    Tier,
    World,
)

VALUES = [value for value in vars(messages).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]
DIRECTIVE = Directive(
    generation=4, tier=Tier.ROLLBACK, restore=CheckpointRef(2, 80), lr_events=(LrEvent(80, 0.8, 4),), skip=((3, 5),)
)


@pytest.mark.parametrize("value", VALUES)
def test_every_message_is_frozen_and_documented(value: type) -> None:
    assert value.__dataclass_params__.frozen  # type: ignore[attr-defined]  # dataclasses keep it off their public types
    assert value.__doc__


@pytest.mark.parametrize(
    "message",
    [
        DIRECTIVE,
        Placement(World(4, 0, 2, "10.0.0.1", 4711), DIRECTIVE, fired=((0, 1),)),
        Incident(4, 90, 88, FaultKind.SPIKE, 9.5, {"z": 9.5, "steps": [88, 89]}),
        Heartbeat(1, 4, 1, Phase.STEP, 90, lines=((1, "fault.fired", {"index": 0}),)),
    ],
)
def test_a_message_crosses_a_process_border_unchanged(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_tiers_are_numbered_as_people_name_them() -> None:
    assert [tier.number for tier in (Tier.RESUME, Tier.ROLLBACK, Tier.FP32_REPLAY, Tier.EXHAUSTED)] == [1, 2, 3, 4]


def test_only_bad_numbers_count_as_numeric() -> None:
    machines = {kind for kind in FaultKind if not kind.numeric}
    assert machines == {FaultKind.PROCESS, FaultKind.HANG, FaultKind.USER_CODE}
