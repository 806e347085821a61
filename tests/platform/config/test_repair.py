"""Repairs reduce the learning rate and never raise it, and the ladder's budgets are at least one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.repair import LadderSection, LrSection, RollbackSection
from stormsail.platform.config.section import Section


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        (RollbackSection, {"lr_factor": 1.0}),
        (RollbackSection, {"lr_factor": 0.0}),
        (LrSection, {"floor": 1.1}),
        (LadderSection, {"episodes_total": 0}),
        (LadderSection, {"on_anomaly": "ignore"}),
    ],
)
def test_what_repairs_nothing_or_never_ends_is_refused(section: type[Section], wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        section.model_validate(wrong)
