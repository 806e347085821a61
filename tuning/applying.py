"""Writes a sweep's winner into the target's YAML, comments and order kept, and the certificate beside it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from stormsail.platform.certificate import certified_values
from stormsail.platform.certificate_file import certificate_path
from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckFailedError, ConfigError
from stormsail.platform.runs import RunPlace
from stormsail.tuning.certifying import certify
from stormsail.tuning.proxy import own_of_target, parametrised
from stormsail.tuning.records import SweepRecords, sweep_of
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.sweep import read_answer
from stormsail.tuning.transfer import Handover, Value

# What an earlier sweep said of a value that now comes from this one.
_OLD_COMMENT = re.compile(r"^ *# sweep [a-z0-9._-]+@\d+: .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Applied:
    """What was written.

    Attributes:
        file: The target's YAML.
        certificate: The certificate.
        changed: `key: old -> new (why)`, one for each key.
    """

    file: Path
    certificate: Path
    changed: tuple[str, ...]


def apply_sweep(place: RunPlace, to: Path | None) -> Applied:
    """Write the winner of a sweep into its target, or into another file.

    Raises:
        CheckFailedError: The sweep is void, incomplete or without a winner.
        ConfigError: The file is not there, cannot be written, is of another run, or would not be valid afterwards.
    """
    records = SweepRecords(place.store())
    answer, plan = read_answer(records), records.plan()
    winner = answer.winner
    if not answer.complete or winner is None or answer.handover is None or plan is None:
        raise CheckFailedError(
            f"the sweep has nothing to hand over: it is {answer.standing}",
            where=answer.name,
            todo=f"look at it with `stormsail sweep status {answer.name}`",
        )
    file = (to or Path(plan.target_file)).resolve()  # not the link to it is replaced
    sweep, measured_for = sweep_of(plan, records.store.url), parse_dump(plan.target)
    config = load_config(file, environ={})
    values = (*answer.handover.values, *parametrisation_values(config, measured_for, sweep))
    _refuse_another(config, measured_for, sweep)
    name = f"{place.name}@{place.incarnation}"
    text, changed = edit_yaml(file.read_text(encoding="utf-8"), Handover(values, ()), config, f"sweep {name}")

    def certificate_of(written: RunConfig) -> str:
        _refuse_more_than_the_values(config, written, sweep, file)
        return certify(
            answer, winner, written, values=values, kind=sweep.trials.kind, sweep=name, made_s=time.time()
        ).dump()

    _replace(file, text, certificate_of)
    return Applied(file, certificate_path(file), changed)


def _replace(file: Path, text: str, certificate_of: Callable[[RunConfig], str]) -> None:
    """Put a new text and its certificate in the place of a file, both or neither as far as that can be had.

    Args:
        file: The YAML; its mode is kept.
        text: Its new text.
        certificate_of: The certificate of the configuration that the new text turns out to be; may refuse it.

    Raises:
        ConfigError: They cannot be written, or the new text is not valid.
    """
    beside = certificate_path(file)
    parts = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in (file, beside)]
    try:
        if not os.access(file, os.W_OK):  # replacing would get around it
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        parts[0].write_text(text, encoding="utf-8")
        shutil.copymode(file, parts[0])
        parts[1].write_text(certificate_of(load_config(parts[0], environ={})), encoding="utf-8")
        # First: on its own it only says that the settings have moved away from it.
        parts[1].replace(beside)
        parts[0].replace(file)
    except OSError as error:
        raise ConfigError(
            f"the winner cannot be written: {error.strerror}",
            where=str(file),
            todo="the file, its folder and the certificate beside it must be writable; or name another file with --to",
        ) from error
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def parametrisation_values(config: RunConfig, measured_for: RunConfig, sweep: SweepConfig) -> list[Value]:
    """What the target needs for its learning rate to mean what it meant on the proxies.

    Raises:
        ConfigError: The file is of another model than the sweep was run for.
    """
    if config.model.factory != measured_for.model.factory or config.optimizer.factory != measured_for.optimizer.factory:
        raise ConfigError(
            f"the sweep was run for model {measured_for.model.factory} and optimizer {measured_for.optimizer.factory}",
            where=config.name,
            todo="apply it to the configuration that it names, or run a sweep for this one",
        )
    if sweep.parametrisation != "mup":
        return []
    full = parametrised(config, sweep)
    why = "mu-parametrisation: the learning rate means what it meant on the proxies"
    return [
        Value("model.args.mup_base_width", full.model.args["mup_base_width"], why),
        Value("optimizer.args.hidden_lr_scale", full.optimizer.args["hidden_lr_scale"], why),
    ]


def _refuse_another(config: RunConfig, measured_for: RunConfig, sweep: SweepConfig) -> None:
    """The values are worked out for the target that the sweep knew: its width, batch and length enter into them.

    Raises:
        ConfigError: The file says something else.
    """
    other = _differences(measured_for, config, sweep)
    if other:
        raise ConfigError(
            f"the sweep was run for other settings than these: {'; '.join(other)}",
            where=config.name,
            todo="put them back, or run a sweep for this configuration",
        )


def _refuse_more_than_the_values(config: RunConfig, written: RunConfig, sweep: SweepConfig, file: Path) -> None:
    """A mapping that a YAML anchor shares changes wherever it stands.

    Raises:
        ConfigError: The edit changed something that was not to be handed over.
    """
    other = _differences(config, written, sweep)
    if other or dump_config(own_of_target(config, sweep)) != dump_config(own_of_target(written, sweep)):
        raise ConfigError(
            f"writing the values would change more than them: {'; '.join(other) or 'settings of other sections'}",
            where=str(file),
            todo="sections that share values by a YAML anchor cannot be edited apart: write them out",
        )


def _differences(then: RunConfig, now: RunConfig, sweep: SweepConfig) -> list[str]:
    """`key: then -> now` of every certified setting that no sweep hands over."""
    before, after = (_not_handed(one, sweep) for one in (then, now))
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]


def _not_handed(config: RunConfig, sweep: SweepConfig) -> dict[str, object]:
    values = certified_values(own_of_target(config, sweep))
    values.pop("optimizer.betas")  # the second is handed over
    return {**values, "optimizer.betas.0": config.optimizer.betas[0]}


def edit_yaml(text: str, handover: Handover, config: RunConfig, label: str) -> tuple[str, tuple[str, ...]]:
    """Set keys in a YAML text; each gets a comment on where it comes from.

    Args:
        text: The document.
        handover: What to set.
        config: The configuration that the text says, for the old values and for lists that are not written out.
        label: Begins every comment.

    Returns:
        The new text, and what changed.
    """
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    tree = yaml.load(_OLD_COMMENT.sub("", text))
    changed = []
    dumped = config.model_dump(mode="json")
    for value in handover.values:
        changed.append(f"{value.key}: {_at(dumped, value.key)} -> {_said(value.value)} ({value.why})")
        _put(tree, value, dumped, f"{label}: {value.why}")
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue(), tuple(changed)


def _put(tree: Any, value: Value, dumped: Mapping[str, Any], comment: str) -> None:
    keys = value.key.split(".")
    item: Any = value.value
    if keys[-1].isdigit():  # one number of a list: the list is written whole
        index = int(keys.pop())
        item = CommentedSeq(_at(dumped, ".".join(keys)))
        item[index] = value.value
        item.fa.set_flow_style()
    holder = tree
    for key in keys[:-1]:
        if not isinstance(holder.get(key), CommentedMap):
            holder[key] = CommentedMap()
        holder = holder[key]
    # A comment inside `{...}` would swallow the rest of the line, so a mapping that is written to opens up.
    _open(tree, keys[:-1])
    holder[keys[-1]] = item
    holder.yaml_set_comment_before_after_key(keys[-1], before=comment, indent=2 * (len(keys) - 1))


def _open(tree: Any, keys: list[str]) -> None:
    """Give the mappings along a path block style; a comment behind one is kept as it is."""
    holder = tree
    for key in keys:
        holder = holder[key]
        holder.fa.set_block_style()


def _at(tree: Mapping[str, Any], key: str) -> Any:
    found: Any = tree
    for part in key.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list | tuple):
            found = found[int(part)]
        else:
            return None
    return found


def _said(value: object) -> str:
    return "null" if value is None else str(value)
