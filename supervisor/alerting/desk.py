"""The supervisor's side of alerts: reads the journal as a follower does, and feeds the process that sends.

It has a thread of its own, which only looks at the ledger and takes none of its locks to do so. What the sending
process says it did goes into the journal, so that the next supervisor knows what is still owed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stormsail.platform.alerts.alert import Alert, Level
from stormsail.platform.alerts.process import LAST_WORDS_S, SenderSettings
from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import FencedError, StorageError
from stormsail.platform.journal_events import Event
from stormsail.supervisor.alerting.policy import alert_for, for_level, unsettled
from stormsail.supervisor.ledger import Ledger

VARIABLES = "alerts.json"
_LOOK_EVERY_S = 0.5
_LISTEN_S = 5.0
_START_S = 60.0  # on a busy machine the process needs long to begin
_MOST_STARTS = 4  # what dies again and again would only fill the journal
_REMEMBERED = 200  # events among which a decision finds the fault that it answers


class AlertDesk:
    """Turns events into alerts and hands them over, until it is closed.

    Args:
        section: Which channels there are.
        ledger: What is known, and where it is noted what was sent.
        folder: The run's local folder.
        run: The run's name.
    """

    def __init__(self, section: AlertsSection, ledger: Ledger, folder: Path, *, run: str) -> None:
        self._section = section
        self._ledger = ledger
        self._run = run
        self._variables = folder / VARIABLES
        self._level = Level(section.level)
        self._recent: deque[Event] = deque(maxlen=_REMEMBERED)
        self._closed = threading.Event()
        self._log = folder / "logs" / "alerts.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._starts = 0
        self._mourned = False
        self._process, self._listener = self._start()
        self._thread = threading.Thread(target=self._feed, name="stormsail-alert-desk", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand over what has happened until now, let it be sent for a while, and end the process."""
        self._closed.set()
        self._thread.join(_LOOK_EVERY_S + 2 * _LISTEN_S)
        code = self._end()
        self._variables.unlink(missing_ok=True)  # the next command that goes on with this run writes it anew
        if code not in (0, 1) and not self._mourned:  # 1: it has said itself what could not be sent
            self._unusable(f"the process that sends alerts ended with {code}")

    def _start(self) -> tuple[subprocess.Popen[str], threading.Thread]:
        self._starts += 1
        with self._log.open("ab") as complaints:
            process = subprocess.Popen(
                [sys.executable, "-m", "stormsail.platform.alerts.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        listener = threading.Thread(target=self._listen, args=(process,), name="stormsail-alerts", daemon=True)
        listener.start()
        _write(process, SenderSettings(self._section.model_dump(mode="json"), str(self._variables)).to_line())
        return process, listener

    def _end(self) -> int:
        """Let the process send what it has, and return its exit code."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died, as its exit code says
                self._process.stdin.close()
        try:
            code = self._process.wait(LAST_WORDS_S + _START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._listener.join(_LISTEN_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def _revive(self) -> None:
        """Put another process in the place of one that has died, and give it what that one owed."""
        if self._mourned or self._process.poll() is None:
            return
        again = self._starts < _MOST_STARTS
        self._mourned = not again
        ended = f"the process that sends alerts ended with {self._end()}"
        self._unusable(
            f"{ended}; another one takes its place" if again else f"{ended} and stays away after {self._starts} starts"
        )
        if again:
            self._process, self._listener = self._start()
            self._catch_up()

    def _feed(self) -> None:
        try:
            self._catch_up()
            while not self._closed.wait(_LOOK_EVERY_S):
                self._look()
                self._revive()
            self._look()
            self._revive()
        except Exception as error:  # noqa: BLE001 - the thread's entry: whoever relies on alerts must hear of it
            traceback.print_exception(error)
            self._unusable(f"{type(error).__name__}: {error}")

    def _catch_up(self) -> None:
        """Tell what an earlier supervisor, or an earlier process, owed."""
        past = self._ledger.look((0, 0)).events
        oldest_s = time.time() - self._section.give_up_s
        for alert, channels in unsettled(past, self._section.channels, run=self._run, oldest_s=oldest_s):
            self._hand_over(alert, channels)
        self._recent.extend(past)

    def _look(self) -> None:
        newest = self._recent[-1].number if self._recent else 0
        for event in self._ledger.look((newest, 0)).events:
            self._hand_over(alert_for(event, self._recent, run=self._run), self._section.channels)
            self._recent.append(event)

    def _hand_over(self, alert: Alert | None, channels: Sequence[str]) -> None:
        worth = for_level(alert, self._level)
        if worth is not None:
            _write(self._process, json.dumps({"alert": worth.to_json(), "channels": list(channels)}))

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            try:
                said = json.loads(line)
            except ValueError:  # it died in the middle of a line
                sys.stderr.write(f"stormsail: the process that sends alerts said {line.strip()!r}\n")
                continue
            self._note(said.pop("kind"), **said)

    def _unusable(self, why: str) -> None:
        self._note("alert.unusable", channel="all", why=why)

    def _note(self, kind: str, **data: Any) -> None:
        try:
            self._ledger.note(kind, **data)
        except FencedError:
            return  # the run is another supervisor's, which asks for itself what is still owed
        except StorageError as error:  # this machine's disk is full: it will be sent again, and that is all
            sys.stderr.write(f"stormsail: {kind} {data} could not be noted: {error.what}\n")


def _write(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has died: `_revive` gives another one what it owed
            process.stdin.write(line + "\n")
            process.stdin.flush()
