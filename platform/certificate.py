"""A stability certificate: for which configuration a sweep speaks, on what evidence, and within which limits; pure.

It is a small JSON file beside the run's YAML. It proves nothing about the large run; it says that somebody looked
first, and it stops speaking as soon as the configuration moves away from the one it names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from stormsail.platform.config.builtin_args import with_builtin_defaults
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError

_TRAIN = ("steps", "precision", "global_batch", "clip_norm")
_WHOLE = ("model", "data", "optimizer", "schedule")
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a sweep vouches for.

    Attributes:
        sweep: The sweep, as `NAME@NUMBER`.
        made_s: When, in seconds since the epoch.
        digest: Of `values`.
        values: Every setting that it speaks for, by dotted key.
        evidence: What was seen, one sentence each.
        limits: What was not checked, one sentence each.
    """

    sweep: str
    made_s: float
    digest: str
    values: dict[str, object]
    evidence: tuple[str, ...]
    limits: tuple[str, ...]

    def dump(self) -> str:
        """As indented JSON."""
        return json.dumps({"version": 1, **asdict(self)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


_READER = TypeAdapter(Certificate)


def parse_certificate(text: str, where: str) -> Certificate:
    """Read what `dump` wrote.

    Raises:
        ConfigError: It is damaged, was edited, or is of another version.
    """
    try:
        record = json.loads(text)
        version = record.pop("version", None)
        certificate = _READER.validate_python(record)
    except (ValueError, TypeError, AttributeError, ValidationError) as error:
        raise _unreadable(where, "it is damaged") from error
    if version != 1:
        raise _unreadable(where, f"it is of version {version}")
    if values_digest(certificate.values) != certificate.digest:
        raise _unreadable(where, "its values do not have its digest, so it was edited")
    return certificate


def certified_values(config: RunConfig) -> dict[str, object]:
    """What stability depends on, by dotted key: model, data, optimizer, schedule, and the numbers of `train`.

    Not the seed, nor anything about machines, checkpoints or repairs.
    """
    full = with_builtin_defaults(config).model_dump(mode="json")
    values: dict[str, object] = {f"train.{key}": full["train"][key] for key in _TRAIN}
    for section in _WHOLE:
        values |= _flat(full[section], section)
    return values


def values_digest(values: Mapping[str, object]) -> str:
    """sha256 (hex) of the values, in any order."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def moved_keys(certificate: Certificate, config: RunConfig) -> tuple[str, ...]:
    """What of the configuration is not as certified: `key: certified -> now`, sorted."""
    now, then = certified_values(config), certificate.values
    return tuple(
        f"{key}: {then.get(key)} -> {now.get(key)}"
        for key in sorted(now.keys() | then)
        if now.get(key) != then.get(key)
    )


def certificate_note(certificate: Certificate | None, config: RunConfig) -> str | None:
    """What to say about a run before it starts, or None if its certificate speaks for it. Drills need none."""
    if config.drill.faults:
        return None
    if certificate is None:
        return "no stability certificate: these settings were tried on no proxy (`stormsail sweep`, docs/sweeps.md)"
    moved = moved_keys(certificate, config)
    if not moved:
        return None
    more = f" and {len(moved) - _MOST_SHOWN} more" if len(moved) > _MOST_SHOWN else ""
    return (
        f"the stability certificate of sweep {certificate.sweep} speaks for other settings: "
        f"{'; '.join(moved[:_MOST_SHOWN])}{more}"
    )


def _flat(tree: Mapping[str, object], prefix: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}.{key}")
        else:
            flat[f"{prefix}.{key}"] = value
    return flat


def _unreadable(where: str, why: str) -> ConfigError:
    return ConfigError(
        f"this is no stability certificate: {why}",
        where=where,
        todo="write it again with `stormsail sweep apply`, or remove it",
    )
