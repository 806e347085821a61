"""Following a run from a terminal: events as they happen, and one live line (plain lines where there is no terminal)."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Protocol, TextIO

from stormsail.platform.config.model import RunConfig
from stormsail.platform.console import emit, styled
from stormsail.platform.errors import ClusterError, StormsailError
from stormsail.platform.messages import StepRow
from stormsail.supervisor import telling
from stormsail.supervisor.host.info import HostInfo
from stormsail.supervisor.ledger import Snapshot
from stormsail.supervisor.phases import RunPhase
from stormsail.supervisor.watch.waiting import Wait

_LOOK_EVERY_S = 0.5
_ANSWER_S = 20.0
_AWAY_LIMIT_S = 240.0
_AVERAGE_OVER = 20
_LONG_WAIT_S = 10.0


class Looker(Protocol):
    """Gives snapshots; raises `ConnectionError` while the supervisor is away."""

    def look(self, cursor: tuple[int, int]) -> Snapshot:
        """What is new since the cursor."""


class RayLooker:
    """Looks at a supervisor actor.

    Args:
        actor: Its handle.
        host: The process that Ray and the run's store depend on, if this machine's own.
    """

    def __init__(self, actor: Any, host: HostInfo | None) -> None:
        self._actor = actor
        self._host = host

    def look(self, cursor: tuple[int, int]) -> Snapshot:
        """What is new since the cursor.

        Raises:
            ClusterError: The host process is gone, so nobody will answer. Ray itself would end this process soon.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            snapshot: Snapshot = ray.get(self._actor.look.remote(cursor), timeout=_ANSWER_S)
        except (RayActorError, GetTimeoutError) as error:
            if self._host is not None and not self._host.identity.is_alive():
                raise ClusterError(
                    "the local host process is gone, and Ray, the local store and the run's processes with it",
                    where=self._host.log_file,
                    todo="go on from the newest checkpoint with the same `stormsail train` command",
                ) from error
            raise ConnectionError(str(error)) from error
        return snapshot


class Screen:
    """Writes events above a line that is rewritten in place, or plain lines where there is no terminal.

    Args:
        config: The run.
        label: Put in front of every line.
        out: Where to.
    """

    def __init__(self, config: RunConfig, *, label: str = "", out: TextIO) -> None:
        self._config = config
        self._label = label
        self._out = out
        self._terminal = out.isatty()
        self._recent: deque[StepRow] = deque(maxlen=_AVERAGE_OVER)
        self._line = ""
        self._told_wait = ""
        self._evaluation_s = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Show what is new."""
        for event in snapshot.events:
            if event.kind == "evaluation.finished":
                self._evaluation_s = float(event.data["took_s"])  # type: ignore[arg-type] # what its kind promises
            text = telling.tell(event)
            if text is not None and not telling.is_quiet(event):
                self._above(f"{telling.clock(event.time_s)} {self._label}{text}")
        for row in snapshot.rows:
            self._recent.append(row)
            if not self._terminal and (row.step + 1) % self._config.train.log_every == 0:
                emit(f"{telling.clock(row.time_s)} {self._label}{self._describe(row)}", stream=self._out)
        waits = self._waits(snapshot.waiting)
        if self._terminal and not snapshot.over:
            last = waits or (self._describe(self._recent[-1]) if self._recent else "")
            busy = f"[{snapshot.phase}] " if snapshot.phase is not RunPhase.RUNNING else ""
            self._rewrite(f"{self._label}{busy}{last}")

    def _waits(self, wait: Wait | None) -> str:
        """What a long wait is for and until when, or ""; where there is no terminal, each is a line of its own, once."""
        if wait is None or wait.age_s < _LONG_WAIT_S:
            self._told_wait = "" if wait is None else self._told_wait
            return ""
        text = f"waiting for {wait.what}, until {telling.clock(time.time() + wait.left_s)} at most"
        if not self._terminal and self._told_wait != wait.what:
            self._told_wait = wait.what
            emit(f"{telling.clock(time.time())} {self._label}{text}", stream=self._out)
        return text

    def close(self) -> None:
        """Leave the last line standing."""
        if self._line:
            self._out.write("\n")
            self._line = ""

    def _describe(self, row: StepRow) -> str:
        seconds = sum(item.step_s for item in self._recent) or row.step_s
        rate = sum(item.tokens for item in self._recent) / seconds
        left = (self._config.train.steps - row.step - 1) * seconds / max(1, len(self._recent))
        left += self._config.eval.count(row.step + 1, last=self._config.train.steps) * self._evaluation_s
        factor = f" (x{row.lr_factor:.2f})" if row.lr_factor != 1.0 else ""
        outcome = "" if row.outcome == "applied" else f"  {row.outcome}"
        skipped = row.step + 1 - row.applied
        return (
            f"step {row.step + 1}/{self._config.train.steps}  loss {row.loss:.4f}  "
            f"grad {row.grad_norm:.2f}->{row.clipped_norm:.2f}  lr {row.lr:.2e}{factor}  {row.precision}  "
            f"{rate:,.0f} tok/s  skipped {skipped}  ETA {_duration(left)}{outcome}"
        )

    def _above(self, text: str) -> None:
        if self._line:
            self._out.write("\r\033[2K")
        emit(_coloured(text, self._out), stream=self._out)
        if self._line:
            self._out.write(self._line)
            self._out.flush()

    def _rewrite(self, text: str) -> None:
        import shutil

        self._line = text[: shutil.get_terminal_size().columns - 1]
        self._out.write(f"\r\033[2K{self._line}")
        self._out.flush()


def follow(looker: Looker, screen: Screen) -> StormsailError | None:
    """Follow a run until its supervisor is done.

    Returns:
        Why the supervisor itself gave up, or None.

    Raises:
        ConnectionError: The supervisor was away for too long.
    """
    cursor, away_since = (0, 0), None
    pause = threading.Event()
    try:
        while True:
            try:
                snapshot = looker.look(cursor)
            except ConnectionError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _AWAY_LIMIT_S:
                    raise
                pause.wait(_LOOK_EVERY_S)
                continue
            away_since = None
            screen.show(snapshot)
            cursor = snapshot.cursor
            if snapshot.over:
                return snapshot.error
            pause.wait(_LOOK_EVERY_S)
    finally:
        screen.close()


def _coloured(text: str, out: TextIO) -> str:
    if " fault: " in text or "needs a person" in text or " failed: " in text or "ALERT" in text:
        return styled(text, "red", stream=out)
    if " decision: " in text:
        return styled(text, "yellow", stream=out)
    if " recovered: " in text or " finished at " in text or "identical" in text:
        return styled(text, "green", stream=out)
    return text


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:  # noqa: PLR2004 - seconds of an hour
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s"
