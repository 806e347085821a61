"""A request and its answer may take their allowance and a share for each byte, and not longer, on real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.support.fake_s3 import Drip, FakeS3

from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.storage import s3_sockets
from stormsail.platform.storage.retry import Patience
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.s3_client import ClientSource
from stormsail.platform.storage.s3_sockets import LOWEST_BYTES_PER_S, Pace, PacedSocket
from stormsail.platform.storage.store import StoreAddress

SENT = 8 << 20
ONCE = Patience(busy_s=0.0, away_s=0.0)


class Clock:
    """Moves on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(60.0)
        yield here, there


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece that goes takes a second."""
    clock = Clock()
    monkeypatch.setattr(s3_sockets, "Pace", lambda allowance_s: Pace(allowance_s, clock=clock))


def test_bytes_that_come_at_the_lowest_rate_are_never_late_and_slower_ones_are() -> None:
    steady = Pace(0.5, clock=Clock())
    for _ in range(1000):
        steady.moved(LOWEST_BYTES_PER_S)
    slower = Pace(10.0, clock=Clock())
    for _ in range(20):
        slower.moved(LOWEST_BYTES_PER_S // 2)
    with pytest.raises(TimeoutError, match=f"slower than {LOWEST_BYTES_PER_S} bytes a second"):
        slower.moved(LOWEST_BYTES_PER_S // 2)


def test_what_is_sent_arrives_whole_and_is_counted(pair: tuple[socket.socket, socket.socket], ticking: None) -> None:
    here, there = pair
    body = bytes(range(256)) * 8192
    got = bytearray()

    def take() -> None:
        while data := there.recv(1 << 16):
            got.extend(data)

    taker = threading.Thread(target=take)
    taker.start()
    paced = PacedSocket(here, 100.0)
    paced.sendall(memoryview(body))
    paced.sendall(b"end")
    here.shutdown(socket.SHUT_WR)
    taker.join(60)
    assert got == body + b"end"


def test_an_answer_that_drips_is_not_waited_for(pair: tuple[socket.socket, socket.socket], ticking: None) -> None:
    here, there = pair
    there.sendall(b"x" * 100)
    lines = PacedSocket(here, 10.0).makefile("rb", 0)  # unbuffered: byte by byte
    with pytest.raises(TimeoutError):
        lines.readline()
    assert PacedSocket(here, 10.0).makefile("rb").read(50) == b"x" * 50  # at once, as it is there


def test_each_request_and_each_answer_has_its_own_allowance(
    pair: tuple[socket.socket, socket.socket], ticking: None
) -> None:
    here, there = pair
    paced = PacedSocket(here, 3.0)
    for _ in range(20):
        paced.sendall(b"request")
        assert there.recv(7) == b"request"
        there.sendall(b"answer")
        assert paced.makefile("rb").read(6) == b"answer"
    for _ in range(3):
        paced.sendall(b"a piece of a request")
    with pytest.raises(TimeoutError):
        paced.sendall(b"one more")


def test_a_file_that_is_closed_lets_the_socket_go(pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    paced = PacedSocket(here, 3.0)
    answer = paced.makefile("rb")
    paced.close()
    assert here.fileno() >= 0  # it closes with the last file that reads from it
    answer.close()
    assert paced.fileno() == -1


# --- through the client, from servers that drip -----------------------------------------------------------


def dripped(fake_s3: FakeS3, address: StoreAddress, drip: Drip) -> S3Store:
    """A store with one object, on a server that drips from now on."""
    S3Store(address).put("k", b"b" * 10_000)
    fake_s3.requests.clear()
    fake_s3.rule = lambda *_: drip
    return S3Store(replace(address, timeout_s=0.5), patience=ONCE)


@pytest.mark.slow  # waits for its limits
@pytest.mark.parametrize(
    ("head", "operation", "tries"),
    [
        (False, "get", 1),  # the body is ours to read: botocore repeats nothing
        (False, "get range", 1),
        (False, "list", 2),
        (True, "head", 2),
        (True, "put", 2),
    ],
)
def test_an_answer_that_drips_is_given_up_like_one_that_stalls(
    fake_s3: FakeS3, fake_address: StoreAddress, head: bool, operation: str, tries: int
) -> None:
    store = dripped(fake_s3, fake_address, Drip(0.05, head=head))
    operations: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("k"),
        "get range": lambda: store.get("k", start=5, end=9000),
        "list": lambda: list(store.list()),
        "head": lambda: store.head("k"),
        "put": lambda: store.put("k", b"other"),
    }
    with pytest.raises(StorageUnavailableError, match=r"timed out \(ReadTimeoutError\)") as caught:
        operations[operation]()
    assert "storage.timeout_s" in caught.value.todo
    assert len(fake_s3.requests) == tries


@pytest.mark.slow  # waits for its limits
def test_a_body_that_drips_is_read_again_from_a_server_that_has_come_to_itself(
    fake_s3: FakeS3, fake_address: StoreAddress
) -> None:
    S3Store(fake_address).put("k", b"b" * 10_000)
    store = S3Store(replace(fake_address, timeout_s=0.5), patience=Patience(busy_s=60.0, first_wait_s=0.01))
    drips = [Drip(0.05, head=False)] * 2
    fake_s3.rule = lambda *_: drips.pop() if drips else None
    assert store.get("k") == b"b" * 10_000
    assert drips == []


class SlowReader:
    """Takes requests of `SENT` bytes, most of them in small pieces with pauses, and answers each with success."""

    def __init__(self) -> None:
        self.requests = 0
        self._closing = threading.Event()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.requests += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as file:
            try:
                while file.readline() not in (b"\r\n", b""):
                    pass
                for _ in range(40):
                    file.read(1 << 17)
                    self._closing.wait(0.06)
                file.read(SENT - (40 << 17))  # at once: by now the client has sent all, and waits for the answer
                client.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')
            except OSError:
                return  # hung up, as the test wants it


@pytest.fixture
def reader() -> Iterator[SlowReader]:
    made = SlowReader()
    yield made
    made.close()


@pytest.mark.slow  # takes longer than the limit of a small request
def test_a_large_body_may_take_longer_than_a_small_one(reader: SlowReader, fake_address: StoreAddress) -> None:
    """Every piece leaves in time, all of them together take longer than the limit of one."""
    store = S3Store(replace(fake_address, endpoint=reader.endpoint, timeout_s=1.5), patience=ONCE)
    assert store.put("k", memoryview(bytearray(SENT))).size_bytes == SENT
    assert reader.requests == 1


@pytest.mark.slow  # waits for its limits
def test_a_server_that_takes_a_body_too_slowly_is_given_up(
    reader: SlowReader, fake_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_sockets, "LOWEST_BYTES_PER_S", 1 << 30)
    store = S3Store(replace(fake_address, endpoint=reader.endpoint, timeout_s=0.5), patience=ONCE)
    with pytest.raises(StorageUnavailableError, match=r"timed out \(ConnectionClosedError\)"):
        store.put("k", bytes(SENT))  # which botocore cuts: each piece leaves in time
    assert reader.requests == 2  # botocore's two tries


def test_encrypted_connections_are_paced_too(fake_address: StoreAddress) -> None:
    session = ClientSource(fake_address).get()._endpoint.http_session
    for scheme in ("http", "https"):
        pool = session._manager.connection_from_url(f"{scheme}://127.0.0.1:9")
        assert pool.ConnectionCls.__qualname__.startswith("_paced")
