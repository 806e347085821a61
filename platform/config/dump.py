"""A configuration as canonical JSON, back again, and the digest of what defines its numbers (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import ValidationError

from stormsail.platform.config.builtin_args import with_builtin_defaults
from stormsail.platform.config.explain import explain
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.problems import ConfigProblems, Place
from stormsail.platform.errors import ConfigError

_STORED = "stored configuration"
# What the numbers follow from, up to rounding. Workers, threads and micro-batches change only the rounding.
_NUMERIC_SECTIONS = ("seed", "model", "data", "optimizer", "schedule")
_NUMERIC_TRAIN = ("steps", "precision", "global_batch", "clip_norm")


def dump_config(config: RunConfig) -> str:
    """The configuration as JSON: every key, sorted, one trailing newline; equal configurations give equal text."""
    return json.dumps(_plain(config), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse_dump(text: str) -> RunConfig:
    """Read what `dump_config` wrote.

    Raises:
        ConfigError: The text is damaged.
        ConfigProblems: It was written by a version with other keys.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the text is not JSON: {error}", where=_STORED) from error
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        place = Place(_STORED)
        raise ConfigProblems.of(
            explain(error, RunConfig, places={}, default=place),
            where=_STORED,
            todo="use the version of Stormsail that wrote it",
        ) from error


def config_digest(config: RunConfig) -> str:
    """sha256 (hex) of what the run's numbers follow from, up to rounding.

    That is seed, model, data, optimizer and schedule, and of `train` the steps, precision, global batch and
    clipping. Built-ins' args count with their defaults, so writing a default out changes nothing.
    """
    values = _plain(with_builtin_defaults(config))
    train = values["train"]
    numeric: dict[str, object] = {name: values[name] for name in _NUMERIC_SECTIONS}
    numeric["train"] = {name: train[name] for name in _NUMERIC_TRAIN} if isinstance(train, Mapping) else train
    text = json.dumps(numeric, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(config: RunConfig) -> dict[str, object]:
    values: dict[str, object] = config.model_dump(mode="json")
    return values
