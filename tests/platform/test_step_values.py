"""The table of a row's named values."""

from __future__ import annotations

import pytest

from stormsail.platform.step_values import RANK_VALUES, STEP_VALUES, value_of


def test_every_name_is_there_once_with_unit_and_meaning() -> None:
    for table in (STEP_VALUES, RANK_VALUES):
        assert len({value.name for value in table}) == len(table)
        assert all(value.unit and value.meaning for value in table)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("norm.blocks.0", "norm.*"),
        ("norm.embed", "norm.*"),
        ("update.rms", "update.rms"),
        ("update.rms.blocks.11", "update.rms.*"),
        ("activation.max.model.layers.3", "activation.max.*"),
        ("clip.factor", "clip.factor"),
    ],
)
def test_a_name_of_a_row_is_found(name: str, family: str) -> None:
    found = value_of(name)
    assert found is not None
    assert found.name == family
    assert found.grouped == family.endswith(".*")


@pytest.mark.parametrize("name", ["", "norms", "clip.other", "time"])
def test_an_unknown_name_has_no_value(name: str) -> None:
    assert value_of(name) is None
