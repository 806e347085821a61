"""From the configuration to a channel."""

from __future__ import annotations

import pytest

from stormsail.platform.alerts.channels import make_channel, secret_of
from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import ConfigError, InternalError

SECTION = AlertsSection.model_validate(
    {"slack": "env:HOOK", "email": {"host": "localhost", "sender": "a@x", "to": ["b@x"]}, "apprise": "env:URLS"}
)
VARIABLES = {"HOOK": "https://hooks.example/x", "URLS": "json://localhost"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise imports modules of Python that are going away
@pytest.mark.parametrize("name", ["slack", "email", pytest.param("apprise", marks=pytest.mark.slow)])
def test_every_configured_channel_can_be_made(name: str) -> None:
    assert make_channel(SECTION, name, secret_of(SECTION, name, VARIABLES)).name == name


def test_a_channel_without_its_secret_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="HOOK is not set"):
        secret_of(SECTION, "slack", {})


def test_mail_without_a_login_needs_no_secret() -> None:
    assert secret_of(SECTION, "email", {}) is None


def test_a_channel_that_is_not_configured_is_a_bug() -> None:
    with pytest.raises(InternalError):
        make_channel(AlertsSection(), "slack", None)
