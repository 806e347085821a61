"""Compares the configuration that a run was started with against the one it shall go on with (pure).

Continuing a run under its name keeps its promise only while it stays the same experiment. So each key belongs
to one class: it may change freely, it may change but bits will differ, or it needs a new run name or branch.
A key that no rule names is refused: forgetting one here must never spoil a run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from stormsail.platform.config.builtin_args import with_builtin_defaults
from stormsail.platform.config.model import RunConfig


class ChangeClass(StrEnum):
    """What a change of one key means for a run that goes on."""

    ALLOWED = "allowed"
    INEXACT = "inexact"
    REFUSED = "refused"


# The longest rule that fits a dotted key decides. The schedule is refused, but follows `train.steps` by itself.
_RULES: dict[str, ChangeClass] = {
    "name": ChangeClass.REFUSED,
    "seed": ChangeClass.REFUSED,
    "model": ChangeClass.REFUSED,
    "data": ChangeClass.REFUSED,
    "optimizer": ChangeClass.REFUSED,
    "schedule": ChangeClass.REFUSED,
    "train.steps": ChangeClass.ALLOWED,
    "train.log_every": ChangeClass.ALLOWED,
    "train.precision": ChangeClass.REFUSED,
    "train.global_batch": ChangeClass.REFUSED,
    "train.clip_norm": ChangeClass.REFUSED,
    # The order of additions, and so the last bits.
    "train.micro_batch": ChangeClass.INEXACT,
    "train.threads": ChangeClass.INEXACT,
    "train.deterministic": ChangeClass.INEXACT,
    "cluster.workers": ChangeClass.INEXACT,
    "cluster.accelerator": ChangeClass.INEXACT,
    "cluster": ChangeClass.ALLOWED,
    # The stored configuration was found there, so this is the same run, wherever its store has moved.
    "storage": ChangeClass.ALLOWED,
    "checkpoint": ChangeClass.ALLOWED,
    "checkpoint.rounding": ChangeClass.REFUSED,
    "checkpoint.gradient_log": ChangeClass.REFUSED,
    "eval": ChangeClass.ALLOWED,
    "detect": ChangeClass.ALLOWED,
    "nonfinite": ChangeClass.ALLOWED,
    "hang": ChangeClass.ALLOWED,
    "alerts": ChangeClass.ALLOWED,
    "diagnose": ChangeClass.ALLOWED,
    "ladder": ChangeClass.ALLOWED,
    "rollback": ChangeClass.ALLOWED,
    "fp32": ChangeClass.ALLOWED,
    "lr": ChangeClass.ALLOWED,
    "journal": ChangeClass.ALLOWED,
    "tracking": ChangeClass.ALLOWED,
    "drill": ChangeClass.ALLOWED,
}


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key that differs.

    Attributes:
        key: Dotted key.
        old: Stored value (plain JSON), None where the key was not there.
        new: New value, likewise.
    """

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What differs, by what it means; each in key order.

    Attributes:
        allowed: May change; the journal notes it.
        inexact: May change, but from here on results repeat only within rounding.
        refused: Makes it another experiment.
    """

    allowed: tuple[KeyChange, ...] = ()
    inexact: tuple[KeyChange, ...] = ()
    refused: tuple[KeyChange, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.allowed or self.inexact or self.refused)


def compare_configs(stored: RunConfig, new: RunConfig) -> ConfigChange:
    """What differs between the stored configuration and the new one.

    Args of built-in factories are compared with their defaults filled in.
    """
    old_values, new_values = _leaves(stored), _leaves(new)
    found: dict[ChangeClass, list[KeyChange]] = {kind: [] for kind in ChangeClass}
    for key in sorted(old_values.keys() | new_values.keys()):
        change = KeyChange(key, old_values.get(key), new_values.get(key))
        if key not in old_values or key not in new_values or _differs(change):
            found[_class_of(change, stored)].append(change)
    return ConfigChange(
        allowed=tuple(found[ChangeClass.ALLOWED]),
        inexact=tuple(found[ChangeClass.INEXACT]),
        refused=tuple(found[ChangeClass.REFUSED]),
    )


def classify(key: str) -> ChangeClass:
    """The class of a dotted key, by the longest rule that fits it; refused where none does."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        rule = _RULES.get(".".join(parts[:end]))
        if rule is not None:
            return rule
    return ChangeClass.REFUSED


def _class_of(change: KeyChange, stored: RunConfig) -> ChangeClass:
    if change.key in ("checkpoint.every_steps", "checkpoint.steps_per_failure") and stored.checkpoint.rounding:
        return ChangeClass.REFUSED  # says at which steps the state is rounded
    if change.key == "checkpoint.gradient_log" and "off" not in (change.old, change.new):
        return ChangeClass.ALLOWED  # the gradient is rounded wherever the log goes
    return classify(change.key)


def _leaves(config: RunConfig) -> dict[str, object]:
    """Every value by its dotted key; lists are one value, and so is an empty mapping."""
    leaves: dict[str, object] = {}
    pending: list[tuple[str, object]] = list(with_builtin_defaults(config).model_dump(mode="json").items())
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict) and value:
            pending.extend((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            leaves[key] = value
    return leaves


def _differs(change: KeyChange) -> bool:
    # As text, because Python holds 1, 1.0 and True for equal, and a user's factory may not.
    return json.dumps(change.old, sort_keys=True) != json.dumps(change.new, sort_keys=True)
