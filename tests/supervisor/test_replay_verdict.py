"""What an FP32 replay has shown."""

from __future__ import annotations

import math
from typing import Any

from tests.support.run_kit import step_row

from stormsail.platform.messages import StepRow
from stormsail.supervisor.replay_verdict import compare


def rows(first: int, last: int, **changes: Any) -> dict[int, StepRow]:
    return {step: step_row(step, **changes) for step in range(first, last + 1)}


def test_steps_that_went_wrong_only_in_the_runs_precision_are_the_precisions_fault() -> None:
    before = rows(0, 9) | rows(5, 7, outcome="dropped")
    found = compare(before, rows(0, 9, precision="fp32"))
    assert found.verdict == "numerics: steps 5 to 7 went wrong in the run's precision and not in FP32"
    assert (found.steps, found.anomalous, found.healed) == (10, (5, 6, 7), (5, 6, 7))


def test_a_step_that_goes_wrong_in_fp32_too_is_not_numerics_alone() -> None:
    before = rows(0, 9) | rows(5, 6, flagged=True)
    found = compare(before, rows(0, 9) | rows(6, 6, flagged=True))
    assert found.verdict == "not numerics alone: step 6 went wrong in FP32 too"
    assert found.healed == (5,)


def test_without_a_common_anomalous_step_nothing_is_claimed() -> None:
    found = compare(rows(0, 4), rows(5, 9))
    assert found.verdict == "no anomalous step was computed in both precisions"
    assert (found.steps, found.fp32_loss, found.bf16_loss) == (0, None, None)


def test_losses_that_are_not_finite_are_left_out_of_the_means() -> None:
    before = rows(0, 1, loss=2.0) | rows(1, 1, loss=math.nan)
    found = compare(before, rows(0, 1, loss=1.0))
    assert (found.bf16_loss, found.fp32_loss) == (2.0, 1.0)
    assert found.anomalous == (1,)
