"""The one-process trial: the step code of a run, interrupted and gone on with, and the edge that it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.support.one_rank import build, world_of_one
from tests.support.quadratic import EDGE

from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.tuning.bare_trial import BareTrial, run_bare
from stormsail.tuning.edge import grid_steps_apart, stable_edge
from stormsail.tuning.limits import OverTimeError
from stormsail.tuning.proxy import trial_config
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial
from stormsail.workers.batches import Batch
from stormsail.workers.clip import clip_factor
from stormsail.workers.lean_imports import set_deterministic
from stormsail.workers.schedule import scheduled_lr

Make = Callable[..., SweepConfig]


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    set_deterministic(deterministic=False)
    torch.set_num_threads(threads)


class Kept:
    """A keeper in memory."""

    def __init__(self) -> None:
        self.body: bytes | None = None

    def load(self) -> bytes | None:
        return self.body

    def save(self, body: bytes) -> None:
        self.body = body


@pytest.fixture
def sweep(make_sweep: Make) -> SweepConfig:
    return make_sweep(parametrisation="standard", proxies=[{"name": "w32", "steps": 30}])


def at(bowl: RunConfig, sweep: SweepConfig, lr: float, *, clip: str = "off") -> RunConfig:
    return trial_config(bowl, sweep, Trial("w32", Cell(0.95, clip, 0.0), lr, 1))


def run(config: RunConfig, *, percentile: float | None = None, kept: Kept | None = None) -> BareTrial:
    return run_bare(config, percentile=percentile, keeper=kept or Kept(), checkpoint_steps=20)


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_it_finds_the_edge_of_a_band_that_is_known(bowl: RunConfig, sweep: SweepConfig) -> None:
    grid = [EDGE * 2**exponent / 1.1 for exponent in (-1, 0, 1, 2)]
    outcomes = {lr: [not run(at(bowl, sweep, lr)).figures().diverged] for lr in grid}
    found = stable_edge(outcomes).lr
    assert found is not None
    assert grid_steps_apart(found, EDGE, grid) <= 1


def test_a_trial_that_diverges_says_where_and_ends_early(bowl: RunConfig, sweep: SweepConfig) -> None:
    trial = run(at(bowl, sweep, 1e12))
    figures = trial.figures()
    assert "finite" in figures.diverged
    assert figures.steps < 30
    assert trial.over
    assert figures.final_loss is None or math.isfinite(figures.final_loss)


def test_an_interrupted_trial_ends_as_one_that_was_not(bowl: RunConfig, sweep: SweepConfig) -> None:
    config, kept = at(bowl, sweep, 0.4, clip="0.5"), Kept()
    whole = run(config)
    broken = BareTrial(config)
    for _ in range(22):
        broken.run_step()
        if broken.step == 20:
            kept.save(broken.dump())
    again = run(config, kept=kept)
    assert again.restarts == 1
    assert again.course == whole.course
    assert whole.restarts == 0


def test_a_trial_over_its_time_keeps_what_it_reached(bowl: RunConfig, sweep: SweepConfig) -> None:
    config, kept = at(bowl, sweep, 0.4), Kept()
    broken = BareTrial(config)
    for _ in range(20):
        broken.run_step()
    kept.save(broken.dump())
    with pytest.raises(OverTimeError, match="after 20 of 30 steps"):  # what earlier attempts took counts
        run_bare(config, percentile=None, keeper=kept, checkpoint_steps=99, limit_s=broken.wall_s)
    assert run(config, kept=kept).course == run(config).course


def test_a_batch_without_a_real_token_is_no_divergence(
    bowl: RunConfig, sweep: SweepConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = BareTrial(at(bowl, sweep, 0.4))
    whole = trial.reader.micro_batches

    def empty_at_3(step: int, order: DataOrder) -> list[Batch]:
        batches = whole(step, order)
        return [(tokens, targets, mask * (step != 3)) for tokens, targets, mask in batches]

    monkeypatch.setattr(trial.reader, "micro_batches", empty_at_3)
    while not trial.over:
        trial.run_step()
    assert trial.course.loss[3] == trial.course.loss[2]
    assert not trial.figures().diverged
    assert trial.figures().final_loss is not None
    assert not trial.course.incidents


def test_a_lower_percentile_clips_more_steps(bowl: RunConfig, sweep: SweepConfig) -> None:
    rates = [run(at(bowl, sweep, EDGE / 2), percentile=p).figures().clip_rate for p in (1.0, 99.0)]
    assert rates[0] > rates[1]


def test_rungs_are_reported_once_with_a_score_of_zero_while_it_is_stable(bowl: RunConfig, sweep: SweepConfig) -> None:
    told: list[tuple[int, float]] = []
    condemned: list[int | None] = []

    def report(percent: int, score: float, trial: BareTrial) -> None:
        condemned.append(trial.course.condemned)
        assert len(trial.course.loss) == trial.step
        told.append((percent, score))

    for lr in (EDGE / 4, EDGE * 1.2):
        run_bare(
            at(bowl, sweep, lr), percentile=None, keeper=Kept(), checkpoint_steps=99, rungs=(40, 80), report=report
        )
    assert [percent for percent, _ in told] == [40, 80, 40, 80]
    assert told[0][1] == told[1][1] == 0.0
    assert told[2][1] > 0.0
    assert condemned == [None, None, 12, 12]


def test_the_built_in_model_trains_with_all_figures(target: RunConfig, make_sweep: Make) -> None:
    proxies = [{"name": "w32", "steps": 8, "d_model": 16, "layers": 1, "global_batch": 2, "sequence_tokens": 4}]
    source = target.model_copy(
        update={"data": target.data.model_copy(update={"factory": "tests.support.quadratic:data"})}
    )
    config = trial_config(source, make_sweep(proxies=proxies), Trial("w32", Cell(0.95, "1", 0.25), 0.01, 1))
    figures = run(config).figures()
    assert figures.max_logit is not None
    assert figures.final_loss is not None
    assert 0.0 < (figures.update_rms_p99 or 0.0) < 3.0
    assert not figures.diverged


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own
def test_it_trains_as_the_engine_of_a_run_does(
    target: RunConfig, make_sweep: Make, built_extensions: Path, tmp_path: Path
) -> None:
    """The same weights, batches, rates and clipping in fp32: losses agree to rounding over several updates."""
    proxies = [
        {"name": "base", "steps": 6, "d_model": 16, "layers": 1, "global_batch": 4, "sequence_tokens": 4},
        {"name": "wide", "steps": 6, "d_model": 32, "layers": 1, "global_batch": 4, "sequence_tokens": 4},
    ]
    source = target.model_copy(
        update={"data": target.data.model_copy(update={"factory": "tests.support.quadratic:data"})}
    )
    config = trial_config(source, make_sweep(proxies=proxies), Trial("wide", Cell(0.95, "0.3", 0.5), 0.01, 5))
    trial = run(config)
    with world_of_one(tmp_path / "home", built_extensions):
        engine = build(config, "fp32")
        losses = []
        for step in range(6):
            batches = trial.reader.micro_batches(step, trial.order)
            total = sum(
                engine.forward_backward(batch, 1.0 / 16, last=index == len(batches) - 1)
                for index, batch in enumerate(batches)
            )
            losses.append(total / 16)
            norm = math.sqrt(sum(float(gradient.square().sum()) for _, gradient in engine.local_gradients()))
            engine.scale_gradients(clip_factor(norm, 0.3))
            engine.set_learning_rate(
                scheduled_lr(step, peak=0.01, warmup_steps=3, total_steps=6, min_ratio=config.schedule.min_ratio)
            )
            engine.apply()
        engine.destroy()
    assert trial.course.clipped == [True] * 6
    assert losses == pytest.approx(trial.course.loss, abs=1e-5)
