"""Alerts by e-mail, over SMTP."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from stormsail.platform.alerts.delivery import DeliveryError
from stormsail.platform.config.alerts import EmailSection

_FIRST_PERMANENT = 500


class EmailChannel:
    """Sends messages through a mail server.

    Args:
        section: Server and addresses.
        password: For the login, or None.
        timeout_s: Limit of each wait for the server.
    """

    name = "email"

    def __init__(self, section: EmailSection, password: str | None, *, timeout_s: float) -> None:
        self._section = section
        self._password = password
        self._timeout_s = timeout_s

    def send(self, subject: str, body: str) -> None:
        """Send one mail to all addresses; some servers refuse single ones, and that is an error too."""
        message = EmailMessage()
        message["From"] = self._section.sender
        message["To"] = ", ".join(self._section.to)
        message["Subject"] = " ".join(subject.split())
        message["Date"] = formatdate()
        message["Message-ID"] = make_msgid(domain="stormsail")
        message.set_content(body + "\n")
        try:
            with self._connection() as server:
                if self._section.user is not None and self._password is not None:
                    server.login(self._section.user, self._password)
                refused = server.send_message(message)
        except smtplib.SMTPResponseException as error:
            raise DeliveryError(
                f"the mail server answered {error.smtp_code} {_text(error.smtp_error)}",
                permanent=error.smtp_code >= _FIRST_PERMANENT,
            ) from None
        except smtplib.SMTPRecipientsRefused as error:
            raise _nobody(error.recipients) from None
        except (smtplib.SMTPException, OSError) as error:
            raise DeliveryError(f"the mail server cannot be used: {str(error) or type(error).__name__}") from None
        if refused:
            raise DeliveryError(f"the mail server refused {', '.join(refused)}; others got it", permanent=True)

    def _connection(self) -> smtplib.SMTP:
        section = self._section
        if section.security == "tls":
            return smtplib.SMTP_SSL(
                section.host, section.port, timeout=self._timeout_s, context=ssl.create_default_context()
            )
        server = smtplib.SMTP(section.host, section.port, timeout=self._timeout_s)
        if section.security == "starttls":
            try:
                server.starttls(context=ssl.create_default_context())
            except BaseException:
                server.close()
                raise
        return server


def _nobody(recipients: dict[str, tuple[int, bytes]]) -> DeliveryError:
    told = "; ".join(f"{address}: {code} {_text(why)}" for address, (code, why) in recipients.items())
    return DeliveryError(
        f"the mail server refused all addresses: {told}",
        permanent=all(code >= _FIRST_PERMANENT for code, _ in recipients.values()),
    )


def _text(raw: bytes | str) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw
