"""Ears of alerts in tests: real servers of this process that hear webhooks and mails, and answer as told."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stormsail.platform.alerts.alert import Alert, Level


@dataclass
class Webhook:
    """A webhook.

    Attributes:
        url: Its address, with something secret in it.
        heard: The texts of the messages that came.
        users: The user and password that each named, if it named one.
        answers: (status, headers) of the next answers; then 200.
        silent: Whether it accepts and never answers.
    """

    url: str = ""
    heard: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    silent: bool = False
    released: threading.Event = field(default_factory=threading.Event)


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A webhook that listens for as long as the block runs."""
    ear = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            ear.heard.append(body["text"])
            if named := self.headers["Authorization"]:
                ear.users.append(base64.b64decode(named.removeprefix("Basic ")).decode())
            if ear.silent:
                ear.released.wait(30.0)
            status, headers = ear.answers.pop(0) if ear.answers else (200, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            ear.heard.append("a question")
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class named it
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    ear.url = f"http://127.0.0.1:{server.server_port}/services/T0/B0/s3cr3t-token"
    try:
        yield ear
    finally:
        ear.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10.0)


def an_alert(number: int = 1, *, key: str = "incident.spike", level: Level = Level.WARNING, step: int = 57) -> Alert:
    """An alert."""
    return Alert(
        key=key,
        level=level,
        run="quickstart",
        step=step,
        time_s=1_000_000.0 + number,
        title="loss spike: tier 1 of the ladder",
        happened="z 14.2",
        done="tier 1, resume from step 50",
        todo="nothing now",
        look="stormsail report quickstart",
        about=(number,),
    )
