"""Limits of a hang are times, and never so tight that an ordinary step is one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.hang import HangSection


@pytest.mark.parametrize(
    "wrong", [{"factor": 1.9}, {"floor_s": 0.0}, {"learn_steps": 0}, {"silent_s": -1.0}, {"evidence_s": 0.0}]
)
def test_limits_that_would_end_healthy_ranks_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HangSection.model_validate(wrong)


def test_the_least_factor_is_twice_the_longest_step() -> None:
    assert HangSection(factor=2.0).factor == 2.0
