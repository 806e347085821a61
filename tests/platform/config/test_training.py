"""What is trained and how: whole numbers are whole, limits are positive, everything else is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.training import TrainSection


@pytest.mark.parametrize("value", [True, "8", float("nan"), float("inf"), 8.5, None, 0, -1])
def test_a_count_takes_whole_numbers_only(value: object) -> None:
    with pytest.raises(ValidationError):
        TrainSection.model_validate({"steps": value})


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), 0.0, -1.0])
def test_a_limit_takes_positive_finite_numbers_only(value: object) -> None:
    with pytest.raises(ValidationError):
        TrainSection.model_validate({"steps": 1, "clip_norm": value})


def test_a_whole_float_counts() -> None:
    assert TrainSection.model_validate({"steps": 1e6}).steps == 1_000_000
