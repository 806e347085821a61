"""Faults are told apart by their kind, and each takes its own keys only."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.drill import DrillSection, LrInstabilityFault


def test_a_fault_is_chosen_by_its_kind() -> None:
    (fault,) = DrillSection.model_validate({"faults": [{"kind": "lr_instability", "step": 3}]}).faults
    assert fault == LrInstabilityFault(kind="lr_instability", step=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "flood", "step": 3},
        {"kind": "raise", "step": 3, "scale": 30.0},
        {"kind": "lr_instability", "step": 3, "scale": 1.0},
        {"kind": "nonfinite", "step": 3, "times": 0},
        {"step": 3},
    ],
)
def test_what_is_no_fault_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DrillSection.model_validate({"faults": [wrong]})
