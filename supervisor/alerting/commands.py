"""`stormsail alerts test`: one message through every channel of a configuration, so that the first real one gets through."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.console import emit, emit_json
from stormsail.platform.errors import CheckFailedError, ConfigError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    alerts = typer.Typer(help="Look after a run's alerts.", no_args_is_help=True)
    alerts.callback()(_group)
    alerts.command("test")(try_out)
    app.add_typer(alerts, name="alerts")


def _group() -> None:
    """Look after a run's alerts."""


def try_out(
    file: Annotated[Path, typer.Argument(help="The run's YAML file.", metavar="FILE")],
    *,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Set one key; may be repeated.")
    ] = [],  # noqa: B006 - typer reads it, nobody writes to it
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")] = False,
) -> None:
    """Send one test message through every channel that FILE configures; exit 3 if one did not get through."""
    config = load_config(file, overrides=overrides, environ=os.environ)
    if not config.alerts.channels:
        raise ConfigError(
            "no channel is configured",
            where=f"{file}: alerts",
            todo="set alerts.slack, alerts.email or alerts.apprise; docs/alerts.md shows how",
        )
    problems = {name: send_test(config, name) for name in config.alerts.channels}
    if as_json:
        emit_json({"channels": {name: {"sent": not why, "why": why} for name, why in problems.items()}})
    else:
        for name, why in problems.items():
            emit(f"{name}: {why or 'sent'}")
    failed = [name for name, why in problems.items() if why]
    if failed:
        raise CheckFailedError(f"no test message got through by {', '.join(failed)}", where=str(file))


def send_test(config: RunConfig, name: str) -> str:
    """Send one message through a channel. Returns why it did not get through, or ""."""
    from stormsail.platform.alerts.alert import body, subject
    from stormsail.platform.alerts.channels import make_channel, secret_of
    from stormsail.platform.alerts.delivery import DeliveryError
    from stormsail.platform.alerts.references import scrub
    from stormsail.supervisor.alerting.policy import trial_alert

    secret = None
    alert = trial_alert(config.name, time_s=time.time())
    try:
        secret = secret_of(config.alerts, name, os.environ)
        make_channel(config.alerts, name, secret).send(subject([alert]), body([alert]))
    except (ConfigError, DeliveryError) as error:
        return scrub(" ".join(str(error).split()), () if secret is None else (secret,))
    return ""
