"""What every way of delivering a message has in common."""

from __future__ import annotations

from typing import Protocol

from stormsail.platform.errors import TryLaterError


class DeliveryError(TryLaterError):
    """A message was not delivered.

    Attributes:
        retry_after_s: What the other side asked to wait, in seconds, or None.
        permanent: Whether the same message would be refused again.
    """

    def __init__(
        self, what: str, *, where: str = "", todo: str = "", retry_after_s: float | None = None, permanent: bool = False
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.retry_after_s = retry_after_s
        self.permanent = permanent


class Channel(Protocol):
    """One way to reach people; used by one thread."""

    name: str

    def send(self, subject: str, body: str) -> None:
        """Deliver one message. Raises `DeliveryError`; returns within the channel's time limit, more or less."""
