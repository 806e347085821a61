"""A TCP proxy in front of a real S3 server that cuts chosen answers after the server has acted.

Signatures pass untouched, because the client signs the proxy's own host and port.
"""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_CHUNK = 1 << 16
_CONTINUE = b"HTTP/1.1 100"
_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")


@dataclass
class _Rule:
    pattern: bytes
    times: int
    after_bytes: int


@dataclass
class _Link:
    client: socket.socket
    server: socket.socket
    cut_after: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class FaultProxy:
    """Listens on a free loopback port until closed.

    Args:
        endpoint: URL of the real server.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut_answers(self, pattern: str, *, times: int = 1, after_bytes: int = 0) -> None:
        """Reset the connection when the next requests whose first line contains `pattern` are answered."""
        with self._lock:
            self._rules.append(_Rule(pattern.encode(), times, after_bytes))

    def close(self) -> None:
        # Closing alone would not wake the thread that waits in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.client.close()
            link.server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            link = _Link(client, socket.create_connection(self._upstream))
            self._links.append(link)
            threading.Thread(target=self._forward_requests, args=(link,), daemon=True).start()
            threading.Thread(target=self._forward_answers, args=(link,), daemon=True).start()

    def _forward_requests(self, link: _Link) -> None:
        try:
            while data := link.client.recv(_CHUNK):
                if data.startswith(_METHODS):
                    self._arm(link, data.split(b"\r\n", 1)[0])
                link.server.sendall(data)
            link.server.shutdown(socket.SHUT_WR)
        except OSError:
            link.server.close()

    def _forward_answers(self, link: _Link) -> None:
        try:
            while data := link.server.recv(_CHUNK):
                if link.cut_after is not None and not data.startswith(_CONTINUE):
                    part = data[: link.cut_after]
                    link.client.sendall(part)
                    link.cut_after -= len(part)
                    if link.cut_after == 0:
                        self._reset(link)
                        return
                else:
                    link.client.sendall(data)
            link.client.shutdown(socket.SHUT_WR)
        except OSError:
            link.client.close()

    def _arm(self, link: _Link, line: bytes) -> None:
        with self._lock:
            for rule in self._rules:
                if rule.times and rule.pattern in line:
                    rule.times -= 1
                    link.cut_after = rule.after_bytes
                    return

    def _reset(self, link: _Link) -> None:
        self.cuts += 1
        link.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.client.shutdown(socket.SHUT_RDWR)
        link.client.close()
        link.server.close()
