"""The worker's line to the supervisor: a thread that tells where the rank is and brings back requests.

The training thread only writes into memory here and never waits: heartbeats are sent, rows and lines are
collected, and a person's request is picked up, all from the thread of this module.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from stormsail.platform.errors import StorageError
from stormsail.platform.messages import Heartbeat, HeartbeatReply, Phase, StepRow

_EXIT_ABORTED = 75

Details: TypeAlias = Callable[[], dict[str, float]]


class HeartbeatThread:
    """Sends heartbeats until closed.

    Args:
        send: Delivers one heartbeat and returns the reply; may raise `ConnectionError` when the supervisor is away.
        attempt: The attempt that this process belongs to.
        rank: Worker index until a world is formed, then the rank.
        interval_s: Seconds between two heartbeats.
        flight: Gives this process's last collectives, for a supervisor that looks into a hang.
    """

    def __init__(
        self,
        send: Callable[[Heartbeat], HeartbeatReply],
        *,
        attempt: int,
        rank: int,
        interval_s: float = 0.5,
        flight: Callable[[], str] = lambda: "",
    ) -> None:
        self._send = send
        self._flight = flight
        self._flight_text = ""
        self._flight_begun = False
        self._attempt = attempt
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._rank = rank
        self._generation = 0
        self._phase = Phase.START
        self._step = -1
        self._rows: list[StepRow] = []
        self._details: list[tuple[StepRow, Details]] = []
        self._lines: list[tuple[int, str, dict[str, object]]] = []
        self._line_number = 0
        self._stop_requested = ""
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stormsail-heartbeat", daemon=True)
        self._thread.start()

    def at(self, phase: Phase, step: int, *, generation: int | None = None, rank: int | None = None) -> None:
        """Note what the rank does now."""
        with self._lock:
            self._phase, self._step = phase, step
            self._generation = self._generation if generation is None else generation
            self._rank = self._rank if rank is None else rank

    def row(self, row: StepRow, details: Details | None = None) -> None:
        """Hand over a finished step.

        Args:
            row: The step.
            details: Gives its `values`; called by the thread that sends, so that the training thread is spared.
        """
        with self._lock:
            self._rows.append(row)
            if details is not None:
                self._details.append((row, details))

    def line(self, kind: str, /, **fields: object) -> None:
        """Hand over an event for the journal; it is sent at once, without waiting for it."""
        with self._lock:
            self._line_number += 1
            self._lines.append((self._line_number, kind, fields))
        self._wake.set()

    def flush(self) -> None:
        """Say everything now, from the calling thread; blocks until it was heard, or could not be."""
        self._beat()

    @property
    def stop_requested(self) -> str:
        """The reason of a person's request to stop, or ""."""
        return self._stop_requested

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Send what is left and end the thread."""
        self._closed.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._beat()
                self._wake.wait(self._interval_s)
                self._wake.clear()
            self._beat()
        except Exception as error:  # noqa: BLE001 - the thread's entry: a worker that nobody hears of must not go on
            traceback.print_exception(error)
            self._leave(f"its line to the supervisor broke: {type(error).__name__}: {error}")

    def _beat(self) -> None:
        with self._sending:  # one at a time, so that rows arrive in order
            self._say()

    def _say(self) -> None:
        with self._lock:
            flight, self._flight_text = self._flight_text, ""
            rows, self._rows = self._rows, []
            details, self._details = self._details, []
            lines, self._lines = self._lines, []
            place = (self._attempt, self._generation, self._rank, self._phase, self._step)
            beat = Heartbeat(*place, tuple(rows), tuple(lines), flight)
        for row, values in details:
            row.values.update(values())
        try:
            reply = self._send(beat)
        except ConnectionError:
            # The supervisor is being restarted: keep everything and say it again with the next beat.
            with self._lock:
                self._flight_text = flight or self._flight_text
                self._rows = rows + self._rows
                self._lines = lines + self._lines
            return
        self._stop_requested = reply.stop_requested or self._stop_requested
        asked, self._flight_begun = reply.evidence and not self._flight_begun, reply.evidence
        if asked:
            # A thread of its own: a driver that hangs may hold up whoever asks it, and this line must stay open.
            threading.Thread(target=self._record_flight, name="stormsail-flight", daemon=True).start()
        if reply.abort:
            self._leave(reply.abort)

    def _record_flight(self) -> None:
        try:
            text = self._flight()
        except RuntimeError as error:  # what torch's C++ raises
            text = f"the flight recorder gave nothing: {error}"
        with self._lock:
            self._flight_text = text
        self._wake.set()

    def _leave(self, reason: str) -> None:
        """End this process from here: its training thread may be stuck in a collective that never returns."""
        os.write(2, f"stormsail: this worker leaves: {reason}\n".encode())
        os._exit(_EXIT_ABORTED)


def supervisor_sender(supervisor: Any, *, timeout_s: float) -> Callable[[Heartbeat], HeartbeatReply]:
    """A sender over a Ray actor handle.

    Args:
        supervisor: Handle of the run's supervisor actor.
        timeout_s: How long one heartbeat may take before it counts as undelivered.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    def send(beat: Heartbeat) -> HeartbeatReply:
        try:
            reply: HeartbeatReply = ray.get(supervisor.heartbeat.remote(beat), timeout=timeout_s)
        except (RayActorError, GetTimeoutError, StorageError) as error:
            # A supervisor whose disk is full heard it and could not note it: no reason for this worker to end.
            raise ConnectionError(str(error)) from error
        return reply

    return send


def now_s() -> float:
    """Seconds since the epoch; the one clock of the workers' rows."""
    return time.time()
