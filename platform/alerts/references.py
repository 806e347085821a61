"""Secrets by reference: `env:NAME` or `file:/path`. Their values are read where they are used and shown nowhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import ConfigError

HIDDEN = "***"
_SHORTEST = 4


def references_of(alerts: AlertsSection) -> dict[str, str]:
    """Every reference of the configuration, by its key."""
    found = {"alerts.slack": alerts.slack, "alerts.apprise": alerts.apprise}
    if alerts.email is not None:
        found["alerts.email.password"] = alerts.email.password
    return {key: reference for key, reference in found.items() if reference is not None}


def resolve(key: str, reference: str, variables: Mapping[str, str]) -> str:
    """The secret behind a reference.

    Args:
        key: The configuration key, for the error.
        reference: `env:NAME` or `file:/path`.
        variables: Where `env:` looks.

    Raises:
        ConfigError: There is nothing behind it.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = variables.get(name, "").strip()
        if not value:
            raise ConfigError(
                f"the environment variable {name} is not set", where=key, todo=f"export {name}, or take the key out"
            )
        return value
    try:
        value = Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file {name} cannot be read: {error}", where=key) from error
    if not value:
        raise ConfigError(f"the file {name} is empty", where=key)
    return value


def check_references(alerts: AlertsSection, variables: Mapping[str, str]) -> None:
    """Raises `ConfigError` if there is nothing behind one of the references."""
    for key, reference in references_of(alerts).items():
        resolve(key, reference, variables)


def keep_variables(alerts: AlertsSection, variables: Mapping[str, str], path: Path) -> None:
    """Put the values of all variables that are referred to into a file of mode 0600.

    The process that sends alerts is no child of the command that was typed. The values must not travel in Ray's
    runtime environment, which Ray writes to its logs and shows on its dashboard.

    Raises:
        ConfigError: A variable is not set.
    """
    kept = {
        reference.removeprefix("env:"): resolve(key, reference, variables)
        for key, reference in references_of(alerts).items()
        if reference.startswith("env:")
    }
    if kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # its mode is that of its making
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(kept, stream)


def kept_variables(path: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """This process's variables, with those that `keep_variables` has kept laid over them."""
    try:
        kept: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        kept = {}
    return {**variables, **kept}


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret, and every line of one, replaced by stars."""
    parts = {part for secret in secrets for line in (secret, *secret.split()) for part in (line, *_telling_parts(line))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _SHORTEST:
            text = text.replace(part, HIDDEN)
    return text


def _telling_parts(url: str) -> tuple[str, ...]:
    """The parts of an address that must stay secret, and that errors like to show alone.

    That is what follows the host, and where a user is named before it, that user, the password, and all three as one.
    """
    host, _, behind = url.partition("://")[2].partition("/")
    user, named, _ = host.rpartition("@")
    if not named:
        return (behind,)
    password = user.partition(":")[2]
    return (behind, host, user, password, unquote(password))
