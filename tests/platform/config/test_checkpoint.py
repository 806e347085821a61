"""When state is saved, in which form, and what of that cannot all be meant."""

from __future__ import annotations

import pytest

from stormsail.platform.config.checkpoint import CheckpointSection


def made(**keys: object) -> CheckpointSection:
    return CheckpointSection.model_validate(keys)


def test_the_distance_of_checkpoints_follows_from_the_log_only_where_there_is_one() -> None:
    auto = {"every_steps": "auto", "gradient_log": "store", "steps_per_failure": 250}
    assert made(**auto).interval == 61
    assert made(**auto, rounding=True).interval == 43
    assert made(every_steps=7).interval == 7


@pytest.mark.parametrize(
    ("keys", "differences"),
    [
        ({}, True),
        ({"deltas": False}, False),
        ({"gradient_log": "store"}, False),
        ({"gradient_log": "store", "rounding": True}, True),
    ],
)
def test_with_a_log_differences_are_written_only_where_they_save_much(
    keys: dict[str, object], differences: bool
) -> None:
    assert made(**keys).writes_differences is differences


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"every_steps": "auto"}, ["checkpoint.every_steps"]),
        ({"every_steps": "auto", "gradient_log": "store"}, []),
        ({"gradient_log": "vault", "vault_gib": 0.0}, ["checkpoint.gradient_log"]),
        ({"gradient_log": "store", "vault_gib": 0.0}, []),
    ],
)
def test_what_cannot_all_be_meant_names_its_key(keys: dict[str, object], named: list[str]) -> None:
    assert [line.split()[0] for line in made(**keys).contradictions()] == named
