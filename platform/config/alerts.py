"""Who is told when a person should know, over which channels, and where the secrets for that are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from stormsail.platform.config.section import Positive, Seconds, Section, list_to_tuple

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")

# Whoever types the secret itself by mistake must not see it again in an error or a log: `explain` hides such values.
SecretReference = Annotated[
    str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)$", json_schema_extra={"x-secret": True})
]


class EmailSection(Section):
    """A mail server that alerts are sent through."""

    host: str = Field(description="SMTP server")
    port: Positive = Field(587, description="its port")
    security: Literal["starttls", "tls", "none"] = Field("starttls", description="how the connection is encrypted")
    user: str | None = Field(None, description="name to log in with; null: no login")
    password: SecretReference | None = Field(None, description="`env:NAME` or `file:/path`, never the password itself")
    sender: str = Field(description="address that the mail comes from")
    to: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(list_to_tuple)] = Field(
        description="addresses that it goes to"
    )

    @model_validator(mode="after")
    def _consistent(self) -> EmailSection:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together: give both, or neither")
        if self.password is not None and self.security == "none" and self.host not in _THIS_MACHINE:
            raise ValueError("security: a password is not sent unencrypted; choose starttls or tls")
        return self


class AlertsSection(Section):
    """Who is told when a person should know. Secrets are named by reference, never written here."""

    slack: SecretReference | None = Field(
        None, description="incoming webhook of Slack or of what speaks like it: `env:NAME` or `file:/path`; null: off"
    )
    email: EmailSection | None = Field(None, description="mail server and addresses; null: off")
    apprise: SecretReference | None = Field(
        None,
        description="`env:NAME` or `file:/path` with Apprise URLs, one a line; needs the extra `alerts`; null: off",
    )
    level: Literal["info", "warning", "page"] = Field("info", description="the least that is worth a message")
    group_s: Seconds = Field(5.0, description="an alert waits this long for others of the same message")
    every_s: Seconds = Field(60.0, description="least time between two messages, unless a person is needed at once")
    timeout_s: Seconds = Field(10.0, description="limit of one try to deliver")
    give_up_s: Seconds = Field(3600.0, description="a message that could not be delivered for this long is given up")

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that are configured."""
        return tuple(name for name in ("slack", "email", "apprise") if getattr(self, name) is not None)
