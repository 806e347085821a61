"""A small S3-like server whose faults are chosen by the test; it checks no signatures.

It stands for servers that cannot be had for a test: one that ignores conditions, is busy, has a full disk,
refuses checksum headers, or no longer takes temporary credentials.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Refusal:
    status: int
    code: str
    message: str = "as the test wants it"


@dataclass(frozen=True)
class Raw:
    """An answer byte for byte; `promised` is what its Content-Length says, if not the body's own."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    promised: int | None = None


@dataclass(frozen=True)
class Stall:
    """No answer for so long, and then the connection ends without one."""

    seconds: float


@dataclass(frozen=True)
class Drip:
    """The answer as it would be, but byte by byte with a pause before each; its head at once if `head` is not set."""

    every_s: float
    head: bool = True


Rule = Callable[[str, str, Message], Refusal | Raw | Stall | Drip | None]


def _no_faults(_method: str, _path: str, _headers: Message) -> Refusal | None:
    return None


class FakeS3(ThreadingHTTPServer):
    """Objects in memory; `rule` may refuse any request, `conditions` says whether conditional puts are honoured.

    A list has at most `page` objects; the next page is asked for with the token that it gave. Of the next `cuts`
    bodies only half is sent; of the next `stalls` bodies too, and then nothing comes, nor does the connection end.
    """

    daemon_threads = True

    def __init__(self, *, conditions: bool = True, rule: Rule = _no_faults) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.conditions = conditions
        self.rule = rule
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.page = 1000
        self.cuts = 0
        self.stalls = 0
        self.requests: list[tuple[str, str]] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_args: object) -> None:
        """Clients that hang up are what the tests are about."""

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes, and the second one would wait for 40 ms
    server: FakeS3

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused():
            return
        query = self._query
        if "uploadId" in query:
            self.server.uploads[query["uploadId"][0]][1][int(query["partNumber"][0])] = body
            self._answer(200, headers={"ETag": _etag(body)})
            return
        with self.server.lock:
            held = self.server.objects.get(self._key)
            if self.server.conditions and not self._condition_holds(held):
                self._refuse(Refusal(412, "PreconditionFailed"))
                return
            self.server.objects[self._key] = body
        self._answer(200, headers={"ETag": _etag(body)})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused():
            return
        query = self._query
        if "uploads" in query:
            upload = f"upload{len(self.server.requests)}"
            self.server.uploads[upload] = self._key, {}
            self._answer(200, f"<R><UploadId>{upload}</UploadId></R>".encode())
            return
        key, parts = self.server.uploads.pop(query["uploadId"][0])
        self.server.objects[key] = b"".join(body for _, body in sorted(parts.items()))
        self._answer(200, f"<R><ETag>{_etag(self.server.objects[key])}</ETag></R>".encode())

    def do_GET(self) -> None:
        if self._refused():
            return
        query = self._query
        if "list-type" in query:
            self._answer(200, self._listing(query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]))
            return
        self._send_object()

    def do_HEAD(self) -> None:
        if not self._refused():
            self._send_object()

    def do_DELETE(self) -> None:
        if self._refused():
            return
        with self.server.lock:
            if "uploadId" in self._query:
                self.server.uploads.pop(self._query["uploadId"][0], None)
            else:
                self.server.objects.pop(self._key, None)
        self._answer(204)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    @property
    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _condition_holds(self, held: bytes | None) -> bool:
        if self.headers.get("If-None-Match") == "*":
            return held is None
        wanted = self.headers.get("If-Match")
        return wanted is None or (held is not None and wanted == _etag(held))

    def _refused(self) -> bool:
        self.server.requests.append((self.command, self.path))
        found = self.server.rule(self.command, self.path, self.headers)
        if isinstance(found, Refusal):
            self._refuse(found)
        elif isinstance(found, Raw):
            self._answer(found.status, found.body, headers=dict(found.headers), promised=found.promised)
        elif isinstance(found, Stall):
            self.server.closing.wait(found.seconds)
            self.close_connection = True
        elif isinstance(found, Drip):
            self.wfile = _Dripping(self.wfile, found, self.server.closing)
            return False
        return found is not None

    def _refuse(self, refusal: Refusal) -> None:
        xml = f"<Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message></Error>"
        self._answer(refusal.status, xml.encode())

    def _send_object(self) -> None:
        with self.server.lock:
            body = self.server.objects.get(self._key)
        if body is None:
            self._refuse(Refusal(404, "NoSuchKey"))
            return
        headers = {"ETag": _etag(body), "Last-Modified": formatdate(usegmt=True)}
        status, asked = 200, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is not None:
            first, total = int(asked[1]), len(body)
            body = body[first : int(asked[2]) + 1 if asked[2] else None]
            if not body:
                self._refuse(Refusal(416, "InvalidRange"))
                return
            headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{total}"
            status = 206
        with self.server.lock:
            cut = self.command == "GET" and self.server.cuts > 0
            self.server.cuts -= cut
            stall = self.command == "GET" and self.server.stalls > 0
            self.server.stalls -= stall
        self._answer(status, body[: len(body) // 2] if cut or stall else body, headers=headers, promised=len(body))
        if stall:
            self.wfile.flush()
            self.server.closing.wait(30.0)

    def _listing(self, prefix: str, after: str) -> bytes:
        with self.server.lock:
            held = sorted((key, body) for key, body in self.server.objects.items() if key.startswith(prefix))
        held = [(key, body) for key, body in held if key > after]
        more = len(held) > self.server.page
        held = held[: self.server.page]
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(body)}</Size><ETag>{_etag(body)}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, body in held
        )
        token = f"<NextContinuationToken>{held[-1][0]}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode()
        )

    def _answer(
        self, status: int, body: bytes = b"", *, headers: dict[str, str] | None = None, promised: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        length = len(body) if promised is None else promised
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if length > len(body):
            self.close_connection = True


class _Dripping(io.BufferedIOBase):
    def __init__(self, whole: io.BufferedIOBase, drip: Drip, closing: threading.Event) -> None:
        self._whole = whole
        self._drip = drip
        self._closing = closing
        self._in_head = True

    def write(self, data: Any) -> int:
        whole = self._in_head and not self._drip.head
        for piece in [data] if whole else [data[place : place + 1] for place in range(len(data))]:
            if not whole:
                self._closing.wait(self._drip.every_s)
            self._whole.write(piece)
        self._in_head = False
        return len(data)


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'
