"""From `model`, `data` and `optimizer` of the configuration to the things themselves.

A factory is `builtin:NAME`, or `module:function` of the user's own code. User functions get the same section as
the built-ins; what they raise, or give back wrongly, is reported as theirs.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import DataSection, ModelSection, OptimizerSection
from stormsail.platform.data.source import DataSource, HoldsOut, stdlib_source, tokens_source
from stormsail.platform.errors import ConfigError, StormsailError, UserCodeError
from stormsail.workers.checked_source import CheckedSource, describe, missing_members
from stormsail.workers.model import build_transformer
from stormsail.workers.optim import build_adamw
from stormsail.workers.usercode import Blame, blame, call_user, user_error

Factory: TypeAlias = Callable[..., object]

MODELS: Mapping[str, Factory] = {"transformer": build_transformer}
DATA: Mapping[str, Factory] = {"python-stdlib": stdlib_source, "tokens": tokens_source}
OPTIMIZERS: Mapping[str, Factory] = {"adamw": build_adamw}

_PREFIX = "builtin:"
_PATHS_SHOWN = 4


def brings_own_code(config: RunConfig) -> bool:
    """Whether the model or the optimizer is the user's own code (pure)."""
    return not all(factory.startswith(_PREFIX) for factory in (config.model.factory, config.optimizer.factory))


def build_model(section: ModelSection) -> nn.Module:
    """The model, its forward mapping (tokens, targets, mask) to a loss per token.

    Seed torch alike on all ranks first: initial weights follow from it.

    Raises:
        ConfigError: The reference is malformed, or names no built-in.
        UserCodeError: The user's factory failed or did not return a module with trained parameters.
    """
    key = "model.factory"
    function = resolve(key, section.factory, MODELS)
    model = _make(key, section.factory, function, section)
    if not isinstance(model, nn.Module):
        raise _wrong_result(key, section.factory, function, model, "a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise _wrong_result(key, section.factory, function, model, "a module with parameters that are trained")
    _check_signature(model)
    return model


def build_data(section: DataSection) -> DataSource:
    """The data source; one of the user's own is checked on its first sample, and its shapes on every one.

    Raises:
        ConfigError: The reference is malformed, or names no built-in, or a built-in's data are not there.
        UserCodeError: The user's factory failed, or did not return a `DataSource` with proper samples.
    """
    key = "data.factory"
    function = resolve(key, section.factory, DATA)
    found = _make(key, section.factory, function, section)
    source = cast("DataSource", found)
    missing = call_user(key, missing_members, source)
    if missing:
        expected = f"a data source with samples(), sample(index) and digest (missing: {', '.join(missing)})"
        raise _wrong_result(key, section.factory, function, found, expected)
    if section.factory.startswith(_PREFIX):
        return source
    checked = CheckedSource(source, section, where=_defined_at(function))
    checked.check_once()
    return checked


def held_out_of(source: DataSource, config: RunConfig) -> DataSource | None:
    """The samples that a run is evaluated on; None for a run that is never evaluated.

    Raises:
        ConfigError: It is to be evaluated, and its data hold nothing out.
        UserCodeError: The user's `held_out` failed, or did not return a `DataSource` with proper samples.
    """
    if config.eval.every_steps is None:
        return None
    found = source.held_out() if isinstance(source, HoldsOut) else None
    if found is None:
        own = "give the source that data.factory returns a method `held_out()`, which returns a data source of samples that are not trained on"
        built_in = "raise data.args.holdout, or use more data"
        raise ConfigError(
            f"there is nothing to evaluate on: {config.data.factory} holds no sample out of training",
            where=f"eval.every_steps ({config.eval.every_steps})",
            todo=f"{built_in if config.data.factory.startswith(_PREFIX) else own}; null evaluates nothing",
        )
    if isinstance(found, CheckedSource):
        found.check_once()
    return found


def build_optimizer(
    section: OptimizerSection, named_parameters: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """The optimizer over all trained parameters.

    Raises:
        ConfigError: The reference is malformed, or names no built-in.
        UserCodeError: The user's factory failed, or returned no optimizer over exactly the trained parameters.
    """
    key = "optimizer.factory"
    function = resolve(key, section.factory, OPTIMIZERS)
    optimizer = _make(key, section.factory, function, section, list(named_parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _wrong_result(key, section.factory, function, optimizer, "a torch.optim.Optimizer")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left_out = [name for name, parameter in named_parameters if parameter.requires_grad and id(parameter) not in held]
    if left_out:
        expected = f"an optimizer over every trained parameter ({len(left_out)} left out, first {left_out[0]})"
        raise _wrong_result(key, section.factory, function, optimizer, expected)
    return optimizer


def call_model(model: Callable[..., object], tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Run the forward pass; exceptions of the model's own code become the user's.

    One of the communication between ranks passes unchanged (a peer was lost), and so does one of the built-in model.

    Args:
        model: The module, or the engine around it.
        tokens: int64 [B, T].
        targets: int64 [B, T].
        mask: float32 [B, T].

    Returns:
        The loss of each token, [B, T].

    Raises:
        UserCodeError: The model raised, or returned something else.
    """
    try:
        losses = model(tokens, targets, mask)
    except StormsailError:
        raise
    except Exception as error:
        if blame(error) is not Blame.USER:
            raise
        raise user_error(error, "the model's forward") from error
    if not isinstance(losses, Tensor) or losses.shape != tokens.shape or not losses.is_floating_point():
        raise UserCodeError(
            f"the model's forward returned {describe(losses)}, expected a loss per token: a floating-point tensor "
            f"of shape {list(tokens.shape)}",
            where="model.factory",
            todo="forward(tokens, targets, mask) returns the loss of each token times its mask.",
        )
    return losses


def resolve(key: str, reference: str, builtins: Mapping[str, Factory]) -> Factory:
    """Find the function behind `builtin:NAME` or `module:function`.

    Args:
        key: The configuration key that holds the reference, for messages.
        reference: The reference.
        builtins: Functions by name.
    """
    if reference.startswith(_PREFIX):
        return _builtin(key, reference.removeprefix(_PREFIX), builtins)
    module_name, colon, path = reference.partition(":")
    if not (colon and module_name and path):
        raise ConfigError(
            f"{reference!r} is neither builtin:NAME nor module:function",
            where=key,
            todo=f"Built in: {', '.join(_PREFIX + name for name in builtins)}.",
        )
    found: object = _import(key, module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise _no_such_name(key, reference, found, name)
        found = getattr(found, name)
    if not callable(found):
        raise UserCodeError(f"{reference} is {describe(found)}, expected a function", where=key)
    return found


def _builtin(key: str, name: str, builtins: Mapping[str, Factory]) -> Factory:
    if name in builtins:
        return builtins[name]
    near = difflib.get_close_matches(name, builtins, n=1)
    hint = f"Did you mean {_PREFIX}{near[0]}?" if near else f"There are: {', '.join(sorted(builtins))}."
    raise ConfigError(f"there is no built-in {name!r}", where=key, todo=hint)


def _import(key: str, name: str) -> object:
    try:
        return call_user(f"{key}: importing {name}", importlib.import_module, name)
    except UserCodeError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or not f"{name}.".startswith(f"{missing.name}."):
            raise
        looked = [entry or str(Path.cwd()) for entry in sys.path[:_PATHS_SHOWN]]
        more = f" and {len(sys.path) - _PATHS_SHOWN} more" if len(sys.path) > _PATHS_SHOWN else ""
        raise UserCodeError(
            f"there is no module {missing.name!r}",
            where=key,
            todo=f"Looked in {', '.join(looked)}{more}. Start from the folder that holds it, or set PYTHONPATH.",
            details=error.details,
        ) from missing


def _no_such_name(key: str, reference: str, holder: object, name: str) -> UserCodeError:
    near = difflib.get_close_matches(name, [known for known in dir(holder) if not known.startswith("_")], n=1)
    return UserCodeError(
        f"{reference}: there is no {name!r} in {getattr(holder, '__file__', None) or describe(holder)}",
        where=key,
        todo=f"Did you mean {near[0]!r}?" if near else "Name a function that is defined there.",
    )


def _make(key: str, reference: str, function: Factory, *args: object) -> object:
    """Call a factory; a built-in's complaint about its args is the configuration's fault, not the user's code."""
    if not reference.startswith(_PREFIX):
        return call_user(f"{key} {reference}", function, *args)
    try:
        return function(*args)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["args", *(str(part) for part in first["loc"])])
        raise ConfigError(first["msg"], where=f"{key.partition('.')[0]}.{place}") from error


def _check_signature(model: nn.Module) -> None:
    try:
        inspect.signature(model.forward).bind("tokens", "targets", "mask")
    except TypeError as error:
        raise UserCodeError(
            f"{type(model).__name__}.forward cannot be called as forward(tokens, targets, mask): {error}",
            where=_defined_at(type(model).forward),
            todo="Wrap the model in a module whose forward takes these three and returns the loss of each token.",
        ) from None


def _wrong_result(key: str, reference: str, function: Factory, found: object, expected: str) -> UserCodeError:
    return UserCodeError(
        f"{key} {reference} returned {describe(found)}, expected {expected}", where=_defined_at(function)
    )


def _defined_at(function: Factory) -> str:
    """`file:line` of a function, or "" where Python does not know."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
