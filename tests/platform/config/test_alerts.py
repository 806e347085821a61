"""Secrets are named and never written; a login is whole, and goes over the network encrypted."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.alerts import AlertsSection, EmailSection

MAIL = {"host": "mail.example.org", "sender": "a@example.org", "to": ["b@example.org"]}
LOGIN = {"user": "me", "password": "env:PASSWORD"}


def test_the_channels_are_those_that_are_configured() -> None:
    assert AlertsSection().channels == ()
    both = AlertsSection.model_validate({"slack": "env:HOOK", "email": MAIL})
    assert both.channels == ("slack", "email")


@pytest.mark.parametrize("written", ["hunter2", "https://hooks.example.org/1", "env:", "env:1x", "file:password"])
def test_a_secret_is_named_and_not_written(written: str) -> None:
    with pytest.raises(ValidationError):
        AlertsSection(slack=written)


@pytest.mark.parametrize("half", LOGIN)
def test_half_a_login_is_refused(half: str) -> None:
    with pytest.raises(ValidationError, match="belong together"):
        EmailSection.model_validate({**MAIL, half: LOGIN[half]})


@pytest.mark.parametrize(
    ("keys", "fine"),
    [
        ({"security": "none"}, False),
        ({"security": "tls"}, True),
        ({}, True),
        ({"security": "none", "host": "localhost"}, True),
    ],
)
def test_a_password_leaves_this_machine_encrypted_only(keys: dict[str, object], fine: bool) -> None:
    section = {**MAIL, **LOGIN, **keys}
    if fine:
        assert EmailSection.model_validate(section).user == "me"
        return
    with pytest.raises(ValidationError, match="not sent unencrypted"):
        EmailSection.model_validate(section)
