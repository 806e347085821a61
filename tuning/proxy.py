"""From the target's configuration and a scale to the configuration of one trial; pure.

Everything that is not scaled is the target's own. Under mu-parametrisation (Yang et al., Tensor Programs V) heads keep
their size while the width shrinks, so that attention needs no scale of its own, and the base width is the first
proxy's: there mu-parametrisation and the usual one are the same.
"""

from __future__ import annotations

import hashlib

from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.config.builtin_args import PREFIX, TransformerArgs, with_builtin_defaults
from stormsail.platform.config.drill import DrillSection
from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.infrastructure import TrackingSection
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import ModelSection, OptimizerSection
from stormsail.platform.errors import ConfigError
from stormsail.tuning.settings import ProxySection, SweepConfig
from stormsail.tuning.space import Trial

_MODEL = f"{PREFIX}transformer"
_OPTIMIZER = f"{PREFIX}adamw"
_LONGEST_NAME = 63
_DIGITS = 12


def trial_config(target: RunConfig, sweep: SweepConfig, trial: Trial, *, incarnation: int = 1) -> RunConfig:
    """The run that a trial is.

    Args:
        target: The run that the answer is for.
        sweep: The sweep.
        trial: One of its trials.
        incarnation: The sweep's: one that begins anew has no trial's run in common with the one before.

    Raises:
        ConfigError: The target cannot be scaled like this.
    """
    proxy = next(proxy for proxy in sweep.proxies if proxy.name == trial.proxy)
    changed = parametrised(target, sweep, width=proxy.d_model, layers=proxy.layers)
    batch = proxy.global_batch or target.train.global_batch
    bare = sweep.trials.kind == "bare"
    train = target.train.model_copy(
        update={
            "steps": proxy.steps,
            "global_batch": batch,
            "micro_batch": min(batch, proxy.micro_batch or target.train.micro_batch),
            "clip_norm": trial.cell.clip_norm,
            # A bare trial has no mixed precision: what bf16 does to stability is for the supervised kind to show.
            "precision": "fp32" if bare else target.train.precision,
        }
    )
    optimizer = changed.optimizer.model_copy(
        update={"lr": trial.lr, "betas": (target.optimizer.betas[0], trial.cell.beta2)}
    )
    data = target.data.model_copy(update={"sequence_tokens": proxy.sequence_tokens or target.data.sequence_tokens})
    made = with_builtin_defaults(
        target.unevaluated().model_copy(
            update={
                "seed": trial.seed,
                "train": train,
                "model": changed.model,
                "data": data,
                "optimizer": optimizer,
                "schedule": target.schedule.model_copy(
                    update={"warmup_steps": warmup_steps(trial.cell.warmup, proxy.steps)}
                ),
                "cluster": target.cluster.model_copy(update={"workers": 1}),
                "tracking": TrackingSection(uri=None),
                "drill": DrillSection(),
                "alerts": AlertsSection(),  # a control that fails, as it should, wakes nobody
            }
        )
    )
    return made.model_copy(update={"name": _name(sweep.name, trial, made, incarnation)})


def _name(sweep: str, trial: Trial, made: RunConfig, incarnation: int) -> str:
    """A trial's name as a run. It ends with a digest of all that the trial is, so that no run is taken for another's."""
    whole = f"{incarnation} {dump_config(made.model_copy(update={'name': 'trial'}))}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]
    return f"{f'{sweep}-{trial.id}'[: _LONGEST_NAME - _DIGITS - 1]}-{digest}"


def own_of_target(target: RunConfig, sweep: SweepConfig) -> RunConfig:
    """A target without what each trial sets for itself, which is also what `sweep apply` writes.

    Targets that are alike in this have the same trials, before and after a winner was written into one of them.
    """
    model, optimizer = target.model.args, target.optimizer.args
    if sweep.parametrisation == "mup":
        model = {key: value for key, value in model.items() if key != "mup_base_width"}
        optimizer = {key: value for key, value in optimizer.items() if key != "hidden_lr_scale"}
    return target.model_copy(
        update={
            "train": target.train.model_copy(update={"clip_norm": None}),
            "schedule": target.schedule.model_copy(update={"warmup_steps": 0}),
            "model": target.model.model_copy(update={"args": model}),
            "optimizer": target.optimizer.model_copy(
                update={"lr": 1.0, "betas": (target.optimizer.betas[0], 0.0), "args": optimizer}
            ),
        }
    )


def warmup_steps(share: float, steps: int) -> int:
    """A share of the steps, rounded; at least one step of training is left after it."""
    return min(round(share * steps), steps - 1)


def refuse_equal_warmups(sweep: SweepConfig) -> None:
    """Two shares that are one warm-up in steps would train everything twice, and call it two settings.

    Raises:
        ConfigError: There are such on a proxy.
    """
    shares = list(dict.fromkeys(sweep.space.warmup))
    for proxy in sweep.proxies:
        steps = [warmup_steps(share, proxy.steps) for share in shares]
        if len(set(steps)) < len(steps):
            told = ", ".join(f"{share:g} -> {count}" for share, count in zip(shares, steps, strict=True))
            raise ConfigError(
                f"two warm-ups are the same number of steps on proxy {proxy.name!r} ({told})",
                where="space.warmup",
                todo="leave one out, or train longer",
            )


def parametrised(
    target: RunConfig, sweep: SweepConfig, *, width: int | None = None, layers: int | None = None
) -> RunConfig:
    """The target in the sweep's parametrisation, at another width and depth if given: model and optimizer args.

    Raises:
        ConfigError: The target cannot be scaled like this.
    """
    scaled = width is not None or layers is not None
    mup = sweep.parametrisation == "mup"
    if target.model.factory != _MODEL:
        if scaled or mup:
            raise ConfigError(
                f"the target's model is {target.model.factory}: only {_MODEL} can be scaled by d_model and layers",
                where="proxies",
                todo="leave d_model and layers out and set `parametrisation: standard`, with a small model of your "
                "own in the target's model.args",
            )
        return target
    return target.model_copy(
        update={
            "model": _model(target.model, width, layers, base_width(target, sweep) if mup else None),
            "optimizer": _optimizer(target, sweep, width) if mup else target.optimizer,
        }
    )


def base_width(target: RunConfig, sweep: SweepConfig) -> int:
    """The width at which mu-parametrisation is the usual one: the first proxy's."""
    return sweep.proxies[0].d_model or TransformerArgs.model_validate(target.model.args).d_model


def _model(section: ModelSection, width: int | None, layers: int | None, base: int | None) -> ModelSection:
    args = TransformerArgs.model_validate(section.args)
    new_width = width or args.d_model
    if new_width % args.head_dim:
        raise ConfigError(
            f"d_model {new_width} is no multiple of the target's head size {args.head_dim}",
            where="proxies",
            todo="heads keep their size under scaling: choose a multiple of it",
        )
    changes = {
        "d_model": new_width,
        "heads": new_width // args.head_dim,
        "layers": layers or args.layers,
        "mup_base_width": base,
    }
    return section.model_copy(update={"args": {**section.args, **changes}})


def _optimizer(target: RunConfig, sweep: SweepConfig, width: int | None) -> OptimizerSection:
    if target.optimizer.factory != _OPTIMIZER:
        raise ConfigError(
            f"mu-parametrisation is known for {_OPTIMIZER}, not for {target.optimizer.factory}",
            where="parametrisation",
            todo="set `parametrisation: standard`",
        )
    own = TransformerArgs.model_validate(target.model.args).d_model
    scale = base_width(target, sweep) / (width or own)
    return target.optimizer.model_copy(update={"args": {**target.optimizer.args, "hidden_lr_scale": scale}})


def tokens_per_step(target: RunConfig, proxy: ProxySection) -> int:
    """Tokens of one global batch of a proxy."""
    batch = proxy.global_batch or target.train.global_batch
    return batch * (proxy.sequence_tokens or target.data.sequence_tokens)
