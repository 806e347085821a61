"""From the configuration to a channel that can send."""

from __future__ import annotations

from collections.abc import Mapping

from stormsail.platform.alerts.delivery import Channel
from stormsail.platform.alerts.mail import EmailChannel
from stormsail.platform.alerts.others import AppriseChannel
from stormsail.platform.alerts.references import references_of, resolve
from stormsail.platform.alerts.slack import SlackChannel
from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import InternalError


def secret_of(section: AlertsSection, name: str, variables: Mapping[str, str]) -> str | None:
    """The secret that a channel needs, or None if it needs none. Raises `ConfigError`."""
    key = "alerts.email.password" if name == "email" else f"alerts.{name}"
    reference = references_of(section).get(key)
    return None if reference is None else resolve(key, reference, variables)


def make_channel(section: AlertsSection, name: str, secret: str | None) -> Channel:
    """The channel of this name. Raises `DeliveryError` if it can never send."""
    if name == "slack" and secret is not None:
        return SlackChannel(secret, timeout_s=section.timeout_s)
    if name == "email" and section.email is not None:
        return EmailChannel(section.email, secret, timeout_s=section.timeout_s)
    if name == "apprise" and secret is not None:
        return AppriseChannel(secret)
    raise InternalError(f"there is no channel {name!r} in this configuration")
