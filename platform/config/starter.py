"""The configuration that `stormsail init` writes: runs at once on CPUs, and shows every other key with its default (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stormsail.platform.config.builtin_args import Kind, builtin_args
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.section import Section

# What a newcomer is likely to change, and what a short run on two CPU processes needs.
_ACTIVE: Mapping[str, object] = {
    "seed": 1,
    "train.steps": 200,
    "train.global_batch": 16,
    "train.micro_batch": 8,
    "model.factory": "builtin:transformer",
    "model.args.d_model": 256,
    "model.args.layers": 4,
    "model.args.heads": 4,
    "data.factory": "builtin:python-stdlib",
    "data.sequence_tokens": 128,
    "optimizer.lr": 1e-3,
    "schedule.warmup_steps": 20,
    "cluster.workers": 2,
    "storage.url": "embedded",
    "checkpoint.every_steps": 10,
    "rollback.min_steps": 20,
    "fp32.window_steps": 20,
}

_HEAD = """\
# A Stormsail run. Check it with `stormsail validate {file}`, see what it needs with `stormsail plan {file}`,
# start it with `stormsail train {file}`. Keys behind a # show their defaults.
# `stormsail schema > stormsail.schema.json` gives editors what they need to complete the keys.
"""

_PLAIN = re.compile(r"^[A-Za-z][A-Za-z0-9_:./-]*$")
_WORDS = ("true", "false", "null")


def starter_yaml(name: str, *, file: str) -> str:
    """The text of a first configuration.

    Args:
        name: Name of the run.
        file: What the file is called, for the commands in its head.
    """
    active = {**_ACTIVE, "name": name}
    lines: list[str] = []
    for key, info in RunConfig.model_fields.items():
        section = _section_of(info)
        if section is not None:
            lines += ["", f"# {(section.__doc__ or '').splitlines()[0]}", *_section(key, section, active, indent=0)]
        else:
            lines.append(_line(key, info, active, key, indent=0))
    return _HEAD.format(file=file) + "\n" + "\n".join(lines) + "\n"


def _section(path: str, model: type[BaseModel], active: Mapping[str, object], *, indent: int) -> Iterator[str]:
    live = any(key.startswith(f"{path}.") for key in active)
    yield f"{'' if live else '# '}{'  ' * indent}{path.rsplit('.', 1)[-1]}:"
    for key, info in model.model_fields.items():
        inner = f"{path}.{key}"
        below = _args_model(model, path) if key == "args" else _section_of(info)
        if below is not None and below.model_fields:
            yield from _section(inner, below, active, indent=indent + 1)
        else:
            yield _line(key, info, active, inner, indent=indent + 1)


def _section_of(info: FieldInfo) -> type[Section] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _args_model(model: type[BaseModel], path: str) -> type[Section] | None:
    kinds: dict[str, Kind] = {"model": "model", "data": "data", "optimizer": "optimizer"}
    return builtin_args(kinds[path], model.model_fields["factory"].default)


def _line(key: str, info: FieldInfo, active: Mapping[str, object], path: str, *, indent: int) -> str:
    value = active.get(path, info.get_default(call_default_factory=True))
    mark = "" if path in active else "# "
    return f"{mark}{'  ' * indent}{key}: {_yaml(value)}  # {info.description}"


def _yaml(value: object) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value not in _WORDS:
        return value
    return json.dumps(value)
