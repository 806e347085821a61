"""Slack's incoming webhooks, and what speaks like them (Mattermost, Discord's `/slack`, Rocket.Chat)."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit

from stormsail.platform.alerts.delivery import DeliveryError

# Refused now, but not for ever: asked too often, too slow, or the server's own trouble.
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class SlackChannel:
    """Posts messages to a webhook.

    Args:
        url: The webhook's address; whoever has it may post, so it is a secret. It may name a user and a password.
        timeout_s: Limit of each wait.

    Raises:
        DeliveryError: The address is none.
    """

    name = "slack"

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url, user = _split(url)
        self._headers = {"Content-Type": "application/json", "User-Agent": "stormsail"}
        if user:
            named = user if ":" in user else f"{user}:"
            self._headers["Authorization"] = f"Basic {base64.b64encode(unquote(named).encode()).decode()}"
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def send(self, subject: str, body: str) -> None:
        """Post one message."""
        text = f"*{_escaped(subject)}*\n{_escaped(body)}"
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
            self._url,
            data=json.dumps({"text": text}).encode(),
            headers=self._headers,
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error) from None
        except (urllib.error.URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise DeliveryError(f"the webhook cannot be reached: {reason or type(error).__name__}") from None


def _split(url: str) -> tuple[str, str]:
    """The address without its user, and the user with the password; no error shows a part of either."""
    try:
        parts = urlsplit(url)
        reachable = parts.port != 0 and parts.hostname
    except ValueError:
        raise DeliveryError("the webhook's address is no address", permanent=True) from None
    if parts.scheme not in ("http", "https"):
        raise DeliveryError("the webhook's address must begin with http:// or https://", permanent=True)
    if not reachable:
        raise DeliveryError("the webhook's address is no address", permanent=True)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl(), user


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook that moved is a mistake: following would turn the message into a question, and count as delivered."""

    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        """Follow nowhere."""


def _refused(error: urllib.error.HTTPError) -> DeliveryError:
    passing = error.code in _PASSING or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    return DeliveryError(
        f"the webhook answered {error.code} {error.reason}",
        retry_after_s=_seconds(error.headers.get("Retry-After"), error.headers.get("Date")),
        permanent=not passing,
    )


def _seconds(asked: str | None, now: str | None) -> float | None:
    """`Retry-After` in seconds; a date counts from the server's own clock."""
    if asked is None:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(asked) - parsedate_to_datetime(now or "")).total_seconds())
    except (ValueError, TypeError):
        return None


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
