"""From the target to a trial's configuration."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stormsail.platform.config.evaluation import EvalSection
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError
from stormsail.tuning.bare_trial import BareTrial
from stormsail.tuning.proxy import base_width, parametrised, tokens_per_step, trial_config, warmup_steps
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial
from stormsail.workers.lean_imports import defer_compiler
from stormsail.workers.model import Transformer

Make = Callable[..., SweepConfig]
TRIAL = Trial("w32", Cell(0.98, "0.5", 0.05), 0.02, 7)


def test_only_what_is_scaled_or_judged_differs_from_the_target(target: RunConfig, make_sweep: Make) -> None:
    made = trial_config(target.model_copy(update={"eval": EvalSection(every_steps=10)}), make_sweep(), TRIAL)
    assert made == trial_config(target, make_sweep(), TRIAL)
    assert (made.seed, made.optimizer.lr, made.optimizer.betas) == (7, 0.02, (0.9, 0.98))
    assert (made.train.steps, made.train.global_batch, made.train.micro_batch) == (100, 8, 4)
    assert (made.train.clip_norm, made.schedule.warmup_steps, made.train.precision) == (0.5, 5, "fp32")
    assert made.data.sequence_tokens == 64
    assert made.optimizer.weight_decay == target.optimizer.weight_decay
    assert made.tracking.uri is None


def test_a_sweep_that_begins_anew_has_other_runs(target: RunConfig, make_sweep: Make) -> None:
    first, again, anew = (trial_config(target, make_sweep(), TRIAL, incarnation=number) for number in (1, 1, 2))
    assert first == again
    assert first.name != anew.name
    assert first.model_copy(update={"name": ""}) == anew.model_copy(update={"name": ""})


def test_a_proxy_may_take_its_batch_in_fewer_passes(target: RunConfig, make_sweep: Make) -> None:
    proxies = [{"name": "w32", "steps": 9, "d_model": 32, "global_batch": 8, "micro_batch": 16}]
    assert trial_config(target, make_sweep(proxies=proxies), TRIAL).train.micro_batch == 8


def test_heads_keep_their_size_under_scaling(target: RunConfig, make_sweep: Make) -> None:
    args = trial_config(target, make_sweep(), TRIAL).model.args
    assert (args["d_model"], args["heads"], args["layers"]) == (32, 2, 2)


def test_the_hidden_learning_rate_falls_as_the_width_grows(target: RunConfig, make_sweep: Make) -> None:
    sweep = make_sweep(
        proxies=[{"name": "w32", "steps": 9, "d_model": 32}, {"name": "w128", "steps": 9, "d_model": 128}]
    )
    at = {name: trial_config(target, sweep, Trial(name, TRIAL.cell, 0.02, 1)) for name in ("w32", "w128")}
    assert base_width(target, sweep) == 32
    assert [at[name].optimizer.args["hidden_lr_scale"] for name in ("w32", "w128")] == [1.0, 0.25]
    assert parametrised(target, sweep).optimizer.args["hidden_lr_scale"] == 0.5
    assert {config.model.args["mup_base_width"] for config in at.values()} == {32}


def test_a_supervised_trial_keeps_the_targets_precision(target: RunConfig, make_sweep: Make) -> None:
    assert trial_config(target, make_sweep(trials={"kind": "supervised"}), TRIAL).train.precision == "bf16"


def test_a_width_that_no_whole_number_of_heads_fills_is_refused(target: RunConfig, make_sweep: Make) -> None:
    sweep = make_sweep(proxies=[{"name": "w32", "steps": 9, "d_model": 40}])
    with pytest.raises(ConfigError, match="multiple of the target's head size 16"):
        trial_config(target, sweep, TRIAL)


def test_a_model_of_the_users_own_is_not_scaled(bowl: RunConfig, make_sweep: Make) -> None:
    with pytest.raises(ConfigError, match="only builtin:transformer can be scaled"):
        trial_config(bowl, make_sweep(), TRIAL)
    sweep = make_sweep(parametrisation="standard", proxies=[{"name": "w32", "steps": 9}])
    assert trial_config(bowl, sweep, TRIAL).model.factory == bowl.model.factory


def test_mup_needs_the_built_in_optimizer(target: RunConfig, make_sweep: Make) -> None:
    other = target.model_copy(update={"optimizer": target.optimizer.model_copy(update={"factory": "mine:adam"})})
    with pytest.raises(ConfigError, match="not for mine:adam"):
        trial_config(other, make_sweep(), TRIAL)


@pytest.mark.parametrize(("share", "steps", "expected"), [(0.0, 100, 0), (0.05, 100, 5), (1.0, 100, 99), (0.01, 10, 0)])
def test_a_warm_up_leaves_a_step_to_train(share: float, steps: int, expected: int) -> None:
    assert warmup_steps(share, steps) == expected


def test_a_proxys_tokens_are_its_own_batch_of_the_targets_samples(target: RunConfig, make_sweep: Make) -> None:
    assert tokens_per_step(target, make_sweep().proxies[0]) == 8 * 64


WIDTHS = (32, 96, 288)
FLAT = 1.25
"""Factor that separates the largest from the smallest size over the widths, at most, where sizes do not depend on them."""


@pytest.mark.parametrize("parametrisation", ["mup", "standard"])
def test_coordinate_check_over_three_widths(target: RunConfig, make_sweep: Make, parametrisation: str) -> None:
    """After four steps of trials as a sweep runs them: what each block puts out, and how far the steps moved it.

    Under mu-parametrisation both are the same at every width, within `FLAT`, and the logits move no further in a wider
    model. Under the usual one they grow with each width, so this check can fail.
    """
    at = {width: sizes_after_four_steps(target, make_sweep, parametrisation, width) for width in WIDTHS}
    for name in at[WIDTHS[0]]:
        sizes = [at[width][name] for width in WIDTHS]
        if parametrisation == "standard":
            least = 1.0 if name.startswith("logits") else FLAT
            assert sizes[0] * least < sizes[1] < sizes[2] / least, (name, sizes)
        elif name.startswith("logits"):
            assert sizes[0] > sizes[1] > sizes[2] > sizes[0] / 10, (name, sizes)
        else:
            assert max(sizes) < FLAT * min(sizes), (name, sizes)


def sizes_after_four_steps(target: RunConfig, make_sweep: Make, parametrisation: str, width: int) -> dict[str, float]:
    """Root mean squares over all coordinates, by what they are of."""
    shape = {"steps": 50, "layers": 2, "global_batch": 4, "sequence_tokens": 16}
    sweep = make_sweep(
        parametrisation=parametrisation, proxies=[{"name": f"w{each}", "d_model": each, **shape} for each in WIDTHS]
    )
    data = target.data.model_copy(update={"factory": "tests.support.quadratic:data"})
    trial = Trial(f"w{width}", Cell(0.95, "off", 0.0), 3e-3, 1)
    defer_compiler()  # as `run_bare` does: seconds less
    bare = BareTrial(trial_config(target.model_copy(update={"data": data}), sweep, trial))
    tokens = bare.reader.micro_batches(0, bare.order)[0][0]
    before = coordinates(bare.model, tokens)
    for _ in range(4):
        bare.run_step()
    after = coordinates(bare.model, tokens)
    moved = {f"{name} moved": rms(after[name] - before[name]) for name in after}
    return moved | {name: rms(after[name]) for name in after if name != "logits"}


def coordinates(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """What each block and the whole model put out."""
    assert isinstance(model, Transformer)
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            del module, given
            seen[name] = made

        return hook

    hooks = [block.register_forward_hook(keep(f"block {number}")) for number, block in enumerate(model.blocks)]
    with torch.no_grad():
        seen["logits"] = model.logits(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
