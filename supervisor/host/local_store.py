"""The local store: an embedded S3 server that the host process owns, or a plain folder where there is none.

All methods belong to the host's main thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from stormsail.platform.errors import StormsailError
from stormsail.platform.home import Home
from stormsail.platform.storage.embedded import EmbeddedServer
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.host.paths import HostPaths

START_LIMIT_S = 60.0
_MOST_RESTARTS = 5
_RESTART_WINDOW_S = 600.0
_log = logging.getLogger("stormsail.host")


class LocalStore:
    """Starts the store, starts it again when it dies, and stops it.

    Args:
        home: Holds the data: `store/s3` for the server, `store/files` where there is none.
        paths: Where the server's random keys are kept.
        embedded: Whether there is a server for this system (`embedded_available()`).
    """

    def __init__(self, home: Home, paths: HostPaths, *, embedded: bool) -> None:
        self._files = home.store / "files"
        self._server = EmbeddedServer(home.store / "s3", paths.store_credentials) if embedded else None
        self._restarts: deque[float] = deque()
        self.address: StoreAddress | None = None

    @property
    def kind(self) -> str:
        """`embedded` or `file`; "" while nobody has asked for the store."""
        if self.address is None:
            return ""
        return "file" if self._server is None else "embedded"

    def ensure(self) -> None:
        """Have the store running.

        Raises:
            StorageError: It did not start.
        """
        if self._server is None:
            self._files.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.address = StoreAddress(url=self._files.as_uri())
            return
        if self.address is not None:
            if self._server.poll() is None:
                return
            self.address = None
            self._server.stop()
        self.address = self._server.start(START_LIMIT_S)
        _log.info("store started at %s", self.address.endpoint)

    def start_again_if_dead(self) -> None:
        """Bring a store that died back; after several deaths in a row it stays down until somebody asks for it."""
        if self.address is None or self._server is None or self._server.poll() is None:
            return
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > _RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= _MOST_RESTARTS:
            _log.error("the store died %d times within %.0f s and stays down", _MOST_RESTARTS, _RESTART_WINDOW_S)
            self.stop()
            return
        self._restarts.append(now)
        _log.warning("the store ended with status %s and is started again", self._server.poll())
        try:
            self.ensure()
        except StormsailError as error:
            _log.error("the store did not start again: %s", error)

    def stop(self) -> None:
        """Stop the server; the data stays."""
        if self._server is not None:
            self._server.stop()
        if self.kind:
            _log.info("store stopped")
        self.address = None
