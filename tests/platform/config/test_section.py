"""What every section is made of."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BeforeValidator, ValidationError

from stormsail.platform.config.section import Count, Fraction, Section, list_to_tuple


class Small(Section):
    """A section."""

    steps: Count = 0
    share: Fraction = 0.0
    pair: Annotated[tuple[int, int], BeforeValidator(list_to_tuple)] = (0, 0)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert Small.model_validate({"steps": 1e6}).steps == 1_000_000


def test_a_list_stands_for_a_tuple() -> None:
    assert Small.model_validate({"pair": [1, 2]}).pair == (1, 2)


@pytest.mark.parametrize(
    "wrong", [{"steps": 1.5}, {"steps": -1}, {"share": 1.1}, {"share": float("nan")}, {"more": 1}, {"steps": True}]
)
def test_everything_else_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Small.model_validate(wrong)


def test_a_section_is_not_changed_afterwards() -> None:
    with pytest.raises(ValidationError):
        Small().steps = 3  # type: ignore[misc] # what is tested
