"""Everything else that Apprise knows (Teams, PagerDuty, Telegram, ...); it is an extra: `pip install stormsail[alerts]`."""

from __future__ import annotations

import io
import logging

from stormsail.platform.alerts.delivery import DeliveryError


class AppriseChannel:
    """Sends messages to Apprise URLs.

    Args:
        urls: One a line; empty lines and lines that begin with `#` are left out.

    Raises:
        DeliveryError: Apprise is not installed, or a line is no address that it knows.
    """

    name = "apprise"

    def __init__(self, urls: str) -> None:
        try:
            import apprise
        except ImportError:
            raise DeliveryError(
                "Apprise is not installed", todo="pip install 'stormsail[alerts]'", permanent=True
            ) from None
        self._all = apprise.Apprise()
        lines = [line.strip() for line in urls.splitlines() if line.strip() and not line.strip().startswith("#")]
        for number, line in enumerate(lines, start=1):
            if not self._all.add(line):  # the line itself holds secrets
                raise DeliveryError(f"line {number} is no address that Apprise knows", permanent=True)
        if not lines:
            raise DeliveryError("there is no address", permanent=True)

    def send(self, subject: str, body: str) -> None:
        """Send one message to all addresses."""
        log = io.StringIO()
        handler = logging.StreamHandler(log)
        handler.setLevel(logging.WARNING)
        logger = logging.getLogger("apprise")
        logger.addHandler(handler)
        try:
            delivered = self._all.notify(title=subject, body=body)
        finally:
            logger.removeHandler(handler)
        if not delivered:
            last = (log.getvalue().strip().splitlines() or ["no reason was given"])[-1]
            raise DeliveryError(f"Apprise could not deliver to every address: {last}")
