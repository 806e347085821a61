"""The host's ear: threads take requests from the socket, and the main thread alone works on them.

The main thread must do it: what it starts (Ray, the store) is tied by the kernel to the life of the *thread*
that started it, and Ray sets signal handlers.
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ClusterError, StormsailError
from stormsail.supervisor.host.protocol import WAITING_EVERY_S, answer, refusal, waiting

_REQUEST_S = 10.0
_LONGEST_REQUEST = 1 << 16
_log = logging.getLogger("stormsail.host")


@dataclass(slots=True)
class Job:
    """A request on its way to the main thread, which sets `outcome`."""

    request: dict[str, Any]
    outcome: Future[dict[str, Any]] = field(default_factory=Future)


class ControlServer:
    """Listens on a unix socket (mode 0600) and queues what it hears.

    Args:
        path: The socket; a stale one is replaced, which is safe because the host's lock is held.
        activity: Tells what the main thread does now; called from other threads.
    """

    def __init__(self, path: Path, activity: Callable[[], str]) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._path = path
        self._activity = activity
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def start(self) -> None:
        """Listen; returns at once."""
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def stop(self) -> None:
        """Hear nothing more; requests that wait are dropped, and their clients start a new host."""
        self._path.unlink(missing_ok=True)
        self._socket.close()
        while not self.jobs.empty():
            job = self.jobs.get()
            if job is not None:
                job.outcome.cancel()

    def wake(self) -> None:
        """Let the main thread look around; callable from a signal handler."""
        self.jobs.put(None)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed by `stop`
            threading.Thread(target=self._serve, args=(connection,), name="request", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_REQUEST_S)
            try:
                with connection.makefile("rb") as lines:
                    line = lines.readline(_LONGEST_REQUEST)
                if line:
                    self._reply(connection, line)
            except OSError as error:
                _log.info("a client went away: %s", error)

    def _reply(self, connection: socket.socket, line: bytes) -> None:
        try:
            request = json.loads(line)
            request["op"]
        except (ValueError, TypeError, KeyError):
            connection.sendall(refusal(ClusterError("The host process was sent something that is no request.")))
            return
        job = Job(request)
        self.jobs.put(job)
        while True:
            try:
                connection.sendall(answer(job.outcome.result(timeout=WAITING_EVERY_S)))
            except TimeoutError:
                connection.sendall(waiting(self._activity()))
            except CancelledError:
                return
            except StormsailError as error:
                connection.sendall(refusal(error))
                return
            else:
                return
