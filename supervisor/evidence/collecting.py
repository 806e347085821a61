"""Before a rank that hangs is ended: its stacks and all others', the last collectives, the last vitals, kept for people.

One thread per hang, with a limit. It writes to the run's folder on this machine first, then to the run's storage under
`evidence/ATTEMPT/STEP/`, and journals where. Only then is the attempt told to leave; and if all ranks have moved again
meanwhile, it is not.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from stormsail.platform import exact_json
from stormsail.platform.errors import StorageError
from stormsail.platform.messages import JoinRequest
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.evidence.blame import Finding, find_blame
from stormsail.supervisor.evidence.found import Found, Target, render
from stormsail.supervisor.hearing import Hearing
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.watch.hang import Stuck

PREFIX = "evidence"
_LAST_ROWS = 100
_FLIGHTS_S = 3.0  # heartbeats come twice a second, and the answer to one makes the next bring the collectives
_POLL_S = 0.05

Look = Callable[[Sequence[Target], float], list[Found]]
"""Looks at processes wherever they are, within so many seconds."""


class HangCollector:
    """Looks for ranks that are stuck, gathers evidence, and ends their attempt.

    Args:
        ledger: Where it is noted.
        hearing: Knows where the ranks are.
        store: The run's store.
        folder: The run's local folder.
        members: Gives who is in the world, by rank.
        look: Looks at their processes.
        limit_s: Seconds that gathering may take.
        shadow: Say that an attempt would be ended, and leave it alone.
    """

    def __init__(
        self,
        ledger: Ledger,
        hearing: Hearing,
        store: ObjectStore,
        folder: Path,
        *,
        members: Callable[[], Mapping[int, JoinRequest]],
        look: Look,
        limit_s: float,
        shadow: bool = False,
    ) -> None:
        self._ledger = ledger
        self._hearing = hearing
        self._store = store
        self._folder = folder
        self._members = members
        self._look = look
        self._limit_s = limit_s
        self._shadow = shadow
        self._left: tuple[int, int, float] | None = None  # the hang that was left alone in shadow mode
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Look once; returns at once, whatever is found."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or self._hearing.abort:
            return
        stuck = self._hearing.find_stuck()
        if stuck is not None and self._left != (self._ledger.record.attempt, stuck.rank, stuck.progress.since_s):
            self._thread = threading.Thread(target=self._answer, args=(stuck,), name="stormsail-evidence", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _answer(self, stuck: Stuck) -> None:
        attempt, reason, rank = self._ledger.record.attempt, stuck.reason, stuck.rank
        try:
            self._ledger.note("hang.suspected", step=stuck.progress.step, rank=stuck.rank, reason=stuck.reason)
            finding = self._gather(stuck, attempt)
            if self._hearing.find_stuck() is None:
                self._ledger.note("hang.cleared", step=stuck.progress.step, rank=stuck.rank)
                return
            if finding.rank >= 0:
                reason, rank = f"{finding.text}; {stuck.reason}", finding.rank
            if self._shadow:
                self._left = (attempt, stuck.rank, stuck.progress.since_s)
                self._ledger.note("hang.shadowed", step=stuck.progress.step, rank=rank, reason=reason)
                return
        except Exception as error:  # noqa: BLE001 - the thread's entry: without evidence the hang must still end
            traceback.print_exception(error)
        self._hearing.end_attempt(attempt, reason, rank=rank)

    def _gather(self, stuck: Stuck, attempt: int) -> Finding:
        begun = time.monotonic()
        targets = [self._target(rank, request, attempt) for rank, request in self._members().items()]
        self._hearing.want_evidence(wanted=True)
        try:
            found = self._look(targets, self._limit_s)
            self._await_flights(min(begun + self._limit_s, time.monotonic() + _FLIGHTS_S))
        finally:
            self._hearing.want_evidence(wanted=False)
        flights = dict(self._hearing.flights)
        finding = find_blame(found, flights)
        files = self._files(targets, found, flights)
        prefix = f"{PREFIX}/{attempt}/{max(0, stuck.progress.step)}"
        problem = self._keep(prefix, files, begun + self._limit_s)
        self._ledger.note(
            "hang.evidence",
            step=stuck.progress.step,
            rank=finding.rank if finding.rank >= 0 else stuck.rank,
            reason=stuck.reason,
            finding=finding.text,
            places={str(rank): place for rank, place in finding.places.items()},
            sources={str(item.rank): item.source for item in found},
            keys=[f"{prefix}/{name}" for name in files],
            folder=str(self._folder / prefix),
            problem=problem,
            took_s=time.monotonic() - begun,
        )
        return finding

    def _await_flights(self, deadline: float) -> None:
        """Wait until every rank that still talks has sent its last collectives."""
        pause = threading.Event()
        while time.monotonic() < deadline:
            if self._hearing.talking() <= self._hearing.flights.keys():
                return
            pause.wait(_POLL_S)

    def _target(self, rank: int, request: JoinRequest, attempt: int) -> Target:
        return Target(
            rank=rank,
            worker_rank=request.worker_rank,
            pid=request.pid,
            node_ip=request.node_ip,
            hostname=request.hostname,
            log_folder=str(self._folder / "logs" / f"attempt-{attempt}"),
        )

    def _files(self, targets: Sequence[Target], found: Sequence[Found], flights: Mapping[int, str]) -> dict[str, bytes]:
        by_rank = {item.rank: item for item in found}
        files = {
            f"rank-{target.rank}.txt": render(target, by_rank[target.rank]).encode()
            for target in targets
            if target.rank in by_rank
        }
        files |= {f"flight-{rank}.json": text.encode() for rank, text in sorted(flights.items())}
        watched, now = self._hearing.watched(), time.monotonic()
        ranks = {
            str(rank): {
                "phase": str(at.phase),
                "step": at.step,
                "age_s": now - at.since_s,
                "silent_s": now - at.heard_s,
            }
            for rank, at in sorted(watched.ranks.items())
        }
        rows = [asdict(row) for row in self._ledger.newest_rows(_LAST_ROWS)]
        longest_s = {str(phase): stays.longest_s for phase, stays in watched.stays.items()}
        vitals = {"ranks": ranks, "longest_s": longest_s, "rows": rows}
        return {**files, "vitals.json": exact_json.dumps(vitals)}

    def _keep(self, prefix: str, files: Mapping[str, bytes], deadline: float) -> str:
        """Write the files here and to the store; says what could not be stored, or ""."""
        folder = self._folder / prefix
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, body in files.items():
                (folder / name).write_bytes(body)
        except OSError as error:  # a full disk here is no reason to keep it nowhere
            here = f"not on this machine: {error.strerror}"
        else:
            here = f"it is in {folder}"
        try:
            for name, body in files.items():
                if time.monotonic() > deadline:
                    return f"the time was up before {name} was stored; {here}"
                self._store.put(f"{prefix}/{name}", body)
        except StorageError as error:
            return f"the store did not take it ({error.what}); {here}"
        return "" if here.startswith("it is") else here
