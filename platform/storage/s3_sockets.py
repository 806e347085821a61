"""Sockets on which no request to S3 lasts longer than its bytes explain.

A socket's own time-out counts from one piece to the next: a server that sends a byte just before each would hold a
request for hours, and Python's `sendall` counts the other way, so that a large body had to be sent as fast as a small
one. Here the bytes of a request, and those of its answer, may take `allowance_s` and their share of the lowest rate.
What takes longer fails as any time-out does. It is noticed when the next piece comes, so one time-out later at most.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

# Of one connection. A restore has eight of them, a node many ranks, and all of them may share one slow link.
LOWEST_BYTES_PER_S = 128 * 1024
_PIECE_BYTES = 256 * 1024  # of what is sent: encrypted, it is not looked at before all of it is gone


class Pace:
    """Counts the bytes that go one way, from now on.

    Args:
        allowance_s: Seconds that no byte has to explain.
        clock: Monotonic seconds.
    """

    def __init__(self, allowance_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = clock() + allowance_s

    def moved(self, count: int) -> None:
        """So many more bytes have gone. Raises `TimeoutError` if they all took too long."""
        self._until_s += count / LOWEST_BYTES_PER_S
        if self._clock() > self._until_s:
            raise TimeoutError(f"slower than {LOWEST_BYTES_PER_S} bytes a second")


class PacedSocket:
    """A connected socket as `http.client` uses it: one request is sent, then its answer is read from a new file.

    Args:
        connected: The socket, plain or encrypted; whatever else is asked for is asked of it.
        allowance_s: Seconds that no byte has to explain, each way.
    """

    def __init__(self, connected: Any, allowance_s: float) -> None:
        self._socket = connected
        self._allowance_s = allowance_s
        self._sending: Pace | None = None

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of this. Raises `TimeoutError` if it takes too long, with what was sent since the last answer."""
        self._sending = self._sending or Pace(self._allowance_s)
        view = memoryview(data).cast("B")
        while view:
            count = self._socket.send(view[:_PIECE_BYTES])
            self._sending.moved(count)
            view = view[count:]

    def makefile(self, mode: str, buffering: int = -1) -> io.RawIOBase | io.BufferedReader:
        """A file that reads the next answer, unbuffered if `buffering` is 0."""
        self._sending = None
        raw = _PacedFile(self._socket.makefile(mode, buffering=0), Pace(self._allowance_s))
        return raw if buffering == 0 else io.BufferedReader(raw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _PacedFile(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, pace: Pace) -> None:
        self._raw = raw
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        self._pace.moved(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def pace_requests(client: Any, allowance_s: float) -> None:
    """Let all connections of a boto3 client be such sockets.

    Args:
        client: A new one, without connections.
        allowance_s: Seconds that no byte has to explain, each way.
    """
    # botocore takes no connection classes from outside; these are what its session makes all of them from.
    pools = client._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001
    for scheme, pool in pools.items():
        connections = _paced(pool.ConnectionCls, allowance_s)
        pools[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": connections})


def _paced(connections: Any, allowance_s: float) -> Any:
    class Paced(connections):  # type: ignore[misc] # the base is botocore's, without types
        def connect(self) -> None:
            super().connect()
            self.sock: Any = PacedSocket(self.sock, allowance_s)

    return Paced
