"""E-mail, against a real server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stormsail.platform.alerts.delivery import DeliveryError
from stormsail.platform.alerts.mail import EmailChannel
from stormsail.platform.config.alerts import EmailSection

pytestmark = pytest.mark.slow

PASSWORD = "open sesame"


class Postbox:
    """Takes mails, unless told to answer otherwise."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.answer = "250 OK"
        self.refused: tuple[str, ...] = ()
        self.encrypted: list[bool] = []

    async def handle_RCPT(  # noqa: N802 - aiosmtpd named it
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such person"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - as above
        self.encrypted.append(session.ssl is not None)
        if self.answer.startswith("250"):
            self.mails.append(message_from_bytes(bytes(envelope.content), policy=policy.default))
        return self.answer


def knows(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=data.login == b"me" and data.password == PASSWORD.encode(), handled=False)


@pytest.fixture
def box() -> Postbox:
    return Postbox()


class OnAnyPort(Controller):  # type: ignore[misc]  # aiosmtpd has no types
    """Looks up which port it was given before it calls itself there."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


def served(box: Postbox, **options: Any) -> Iterator[Controller]:
    controller = OnAnyPort(box, hostname="127.0.0.1", port=0, ready_timeout=60.0, authenticator=knows, **options)
    controller.start()
    yield controller
    controller.stop()


@pytest.fixture
def server(box: Postbox) -> Iterator[Controller]:
    yield from served(box, auth_require_tls=False)


def channel(server: Controller, *, password: str | None = PASSWORD, **changes: Any) -> EmailChannel:
    values = {
        "host": "127.0.0.1",
        "port": server.port,
        "security": "none",
        "sender": "storm@x.example",
        "to": ["a@x.example", "b@x.example"],
        **({} if password is None else {"user": "me", "password": "env:P"}),
        **changes,
    }
    return EmailChannel(EmailSection.model_validate(values), password, timeout_s=10.0)


def test_a_mail_arrives_at_every_address(server: Controller, box: Postbox) -> None:
    channel(server).send("[page] run: it failed\nbadly", "What happened: ü")
    (mail,) = box.mails
    assert mail["Subject"] == "[page] run: it failed badly"
    assert mail["To"] == "a@x.example, b@x.example"
    assert mail.get_content().strip() == "What happened: ü"


def test_no_login_where_none_is_configured(server: Controller, box: Postbox) -> None:
    channel(server, password=None).send("s", "b")
    assert len(box.mails) == 1


@pytest.mark.parametrize(("answer", "permanent"), [("451 try later", False), ("554 never", True)])
def test_what_passes_is_tried_again(server: Controller, box: Postbox, answer: str, permanent: bool) -> None:
    box.answer = answer
    with pytest.raises(DeliveryError, match=answer) as caught:
        channel(server).send("s", "b")
    assert caught.value.permanent is permanent


def test_a_wrong_password_is_said_without_it(server: Controller) -> None:
    with pytest.raises(DeliveryError, match="535") as caught:
        channel(server, password="abracadabra").send("s", "b")
    assert caught.value.permanent
    assert "abracadabra" not in str(caught.value)


def test_addresses_that_are_refused_are_named(server: Controller, box: Postbox) -> None:
    box.refused = ("b@x.example",)
    with pytest.raises(DeliveryError, match=r"refused b@x.example; others got it"):
        channel(server).send("s", "b")
    assert len(box.mails) == 1
    box.refused = ("a@x.example", "b@x.example")
    with pytest.raises(DeliveryError, match=r"refused all addresses: a@x.example: 550"):
        channel(server).send("s", "b")


def test_nobody_there_is_tried_again(server: Controller) -> None:
    with pytest.raises(DeliveryError, match="cannot be used") as caught:
        channel(server, port=1).send("s", "b")
    assert not caught.value.permanent


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1 that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "cert").write_bytes(made.public_bytes(pem))
    return tmp_path / "key", tmp_path / "cert"


@pytest.fixture
def tls_server(box: Postbox, certificate: tuple[Path, Path]) -> Iterator[Controller]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    yield from served(box, tls_context=context, require_starttls=True)


def test_the_connection_is_encrypted_before_the_password_is_sent(
    tls_server: Controller, box: Postbox, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    channel(tls_server, security="starttls").send("s", "b")
    assert box.encrypted == [True]


def test_a_server_that_nobody_vouches_for_gets_nothing(tls_server: Controller, box: Postbox) -> None:
    with pytest.raises(DeliveryError, match=r"cannot be used.*certificate"):
        channel(tls_server, security="starttls").send("s", "b")
    assert box.encrypted == []
