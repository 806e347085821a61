"""What a run needs again and again: its lease renewed, its journal sent, its cluster and its ranks looked after."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stormsail.platform.errors import FencedError, StorageError
from stormsail.platform.lease import RunLease
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.watch import outage

LEASE_TTL_S = 30.0
_TICK_S = 1.0
_FLUSH_EVERY_S = 5.0


class Ticker:
    """A thread that looks at the clock each second until the run is over.

    Args:
        ledger: Sends what waits, and says when the run is over.
        lease: The run's lease; from now on it is used here only.
        look: Looks after what else the run has in the cluster; never waits.
        watch: Looks for ranks that are stuck; never waits.
        on_lost: Told what ended the thread before the run was over: another supervisor has the run, or a bug.
    """

    def __init__(
        self,
        ledger: Ledger,
        lease: RunLease,
        *,
        look: Callable[[], None],
        watch: Callable[[], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._lock = threading.Lock()  # not the ledger's: a store that is slow must not hold up heartbeats
        self._look = look
        self._watch = watch
        self._on_lost = on_lost
        self._outage = outage.Outage()
        self._sent_s = self._renewed_s = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="stormsail-tick", daemon=True).start()

    def tick(self, now_s: float) -> None:
        """Do what is due.

        Args:
            now_s: The time by the monotonic clock.

        Raises:
            FencedError: Another supervisor has the run.
        """
        try:
            if now_s - self._sent_s > _FLUSH_EVERY_S:
                self._sent_s = now_s
                self._tell_outage(self._ledger.flush(_TICK_S), now_s)
            if now_s - self._renewed_s > LEASE_TTL_S / 3:
                self._renewed_s = now_s
                self._renew()
            self._look()
        except FencedError:
            raise
        except StorageError:
            return  # the store is away: nothing is lost, and the next tick is soon
        self._watch()

    def release(self) -> None:
        """Give the lease back; it is not renewed any more.

        Raises:
            StorageError: It could not be given back; it runs out by itself.
        """
        with self._lock:
            self._lease.release()

    def _run(self) -> None:
        try:
            while not self._ledger.over.wait(_TICK_S):
                self.tick(time.monotonic())
        except Exception as error:  # noqa: BLE001 - the thread's entry: without it nobody would see ranks that hang
            self._on_lost(error)

    def _renew(self) -> None:
        with self._lock:
            if not self._lease.record.released:
                self._lease.renew(time.time())

    def _tell_outage(self, unsent: int, now_s: float) -> None:
        """Say when the store goes away and when it comes back; called after each try to send."""
        self._outage, news = outage.observe(self._outage, unsent, now_s)
        if news is not None:
            self._ledger.note(news.kind, for_s=news.for_s, why=self._ledger.problem or "it takes nothing")
