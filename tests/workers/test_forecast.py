"""The learnt forecast beside the run."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import torch
from tests.support.run_kit import within

from stormsail.workers.detect.beside import Forecast as Limits
from stormsail.workers.forecast import Forecasts, LossForecaster


def curve(steps: int, *, seed: int = 1) -> list[float]:
    noise = random.Random(seed)
    return [2.0 + 2.0 * math.exp(-step / 60) + noise.gauss(0.0, 0.03) for step in range(steps)]


def test_both_forecasts_follow_a_healthy_run_without_a_word() -> None:
    judge = Forecasts(1, Limits())
    alarms, apart = 0, []
    for step, loss in enumerate(curve(300)):
        values = judge.hear(step, loss)
        alarms += len(judge.alarms)
        if step >= 200:
            apart.append(values)
    assert alarms == 0
    for name in ("forecast.lstm_z", "forecast.robust_z"):
        distances = sorted(abs(values[name]) for values in apart)
        assert distances[len(distances) // 2] < 2.0


def test_a_rise_that_stays_is_said_once_by_each() -> None:
    judge = Forecasts(1, Limits())
    said: list[str] = []
    for step, loss in enumerate([*curve(200), *[4.5] * 6]):
        judge.hear(step, loss)
        said += judge.alarms
    assert sorted(said) == ["lstm", "robust"]


def test_how_far_and_how_often_is_a_setting() -> None:
    for limits, said in ((Limits(z=1e6), 0), (Limits(z=6.0, needed=1), 1)):
        judge = Forecasts(1, limits)
        alarms = 0
        for step, loss in enumerate([*curve(60), 4.5]):
            judge.hear(step, loss)
            alarms += len(judge.alarms)
        assert alarms == said


def test_a_loss_that_is_zero_for_long_breaks_nothing() -> None:
    judge = Forecasts(1, Limits())
    values = [judge.hear(step, 0.0) for step in range(60)]
    assert values[-1]["forecast.robust_z"] == 0.0


def test_after_a_rollback_old_forecasts_are_not_compared_with() -> None:
    judge = Forecasts(1, Limits())
    losses = curve(100)
    for step, loss in enumerate(losses):
        judge.hear(step, loss)
    assert judge.hear(50, losses[50]) == {}


def test_the_runs_own_random_numbers_are_left_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    judge = Forecasts(1, Limits())
    for step, loss in enumerate(curve(140)):
        judge.hear(step, loss)
    assert torch.equal(torch.rand(3), expected)


def test_the_thread_hears_and_what_it_finds_can_be_read() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    forecaster = LossForecaster(lambda kind, **fields: lines.append((kind, fields)), seed=1, limits=Limits())
    for step, loss in enumerate([*curve(60), math.nan, *[6.0] * 5]):
        forecaster.hear(step, loss)
    within(lambda: bool(lines))
    forecaster.close()
    assert [(kind, fields["forecast"]) for kind, fields in lines] == [("forecast.watch", "robust")]
    assert forecaster.values["forecast.robust_z"] > 6.0
    assert "stormsail-forecast" not in {thread.name for thread in threading.enumerate()}
