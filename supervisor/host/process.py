"""The local host process: `python -m stormsail.supervisor.host.process HOME`, started by `client.ensure_host`.

It owns the local Ray and the local store, so that neither dies with the command that asked for them, and
ends by itself when nobody needs them. If it is killed, the kernel ends what it started: nothing stays behind.

How it starts: the first process takes the lock (status 3 if another host holds it), moves its output to the
log, forks and ends with status 0. The child inherits the lock, and is the host until it dies.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ClusterError, ConfigError, StormsailError
from stormsail.platform.home import Home
from stormsail.platform.storage.embedded import embedded_available
from stormsail.platform.vault.folder import sweep
from stormsail.supervisor.host import undertaker
from stormsail.supervisor.host.control import ControlServer, Job
from stormsail.supervisor.host.head import RayHead
from stormsail.supervisor.host.identity import ProcessIdentity
from stormsail.supervisor.host.idle import IdleClock
from stormsail.supervisor.host.info import HostInfo, runtime_label, write_info
from stormsail.supervisor.host.lease import count_leases
from stormsail.supervisor.host.local_store import START_LIMIT_S, LocalStore
from stormsail.supervisor.host.paths import HostPaths
from stormsail.workers.quiet import quiet_process, redirect_output

LOCK_HELD = 3
IDLE_VARIABLE = "STORMSAIL_HOST_IDLE_S"

_IDLE_S = 600.0
_TICK_S = 1.0
_RAY_START_S = 150.0
_STOP_S = 60.0
_LONGEST_LOG_BYTES = 5_000_000
_log = logging.getLogger("stormsail.host")


class Host:
    """The state of the process and its main loop.

    Args:
        home: What it serves.
        idle_s: It ends after so long without use.
    """

    def __init__(self, home: Home, idle_s: float) -> None:
        self._home = home
        self._paths = HostPaths.of(home)
        self._ray = RayHead(self._paths)
        self._store = LocalStore(home, self._paths, embedded=embedded_available())
        self._idle = IdleClock.start(idle_s, time.monotonic())
        self._activity = "starting"
        self._ending = ""
        self._published: HostInfo | None = None
        self.control = ControlServer(self._paths.control, lambda: self._activity)
        identity = ProcessIdentity.of(os.getpid())
        if identity is None:
            raise ClusterError("The host process cannot find itself among the processes.", where=str(os.getpid()))
        self._blank = HostInfo(identity, runtime_label(), time.time(), str(self._paths.log))

    @property
    def info(self) -> HostInfo:
        """What runs now."""
        return replace(
            self._blank,
            ray_address=self._ray.address,
            ray_cpus=self._ray.cpus,
            ray_token_file=str(self._paths.ray_token) if self._ray.address else None,
            ray_session=self._ray.session,
            store_address=self._store.address,
            store_kind=self._store.kind,
        )

    def run(self) -> None:
        """Serve until told to end, or until nobody needs the host."""
        _take_signals(self._on_signal)
        guard = undertaker.engage()
        self.control.start()
        self._sweep()
        self._publish()
        _log.info("host started: process %d (undertaker %d), %s", os.getpid(), guard.pid, self._blank.runtime)
        try:
            while not self._ending:
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        job = self._next_job()
        if job is not None:
            self._work(job)
        self._watch()

    def _next_job(self) -> Job | None:
        try:
            return self.control.jobs.get(timeout=min(_TICK_S, self._idle.limit_s / 4))
        except queue.Empty:
            return None

    def _work(self, job: Job) -> None:
        self._idle = self._idle.used(time.monotonic())
        try:
            result = self._perform(job.request)
            self._publish()
        except StormsailError as error:
            job.outcome.set_exception(error)
        except Exception as error:  # noqa: BLE001 - process entry: whatever Ray raises becomes an answer
            _log.exception("request failed: %s", job.request)
            first_line = str(error).strip().partition("\n")[0]
            job.outcome.set_exception(
                ClusterError(
                    f"The local host process could not do `{job.request['op']}`: {type(error).__name__}: {first_line}",
                    where=str(self._paths.log),
                    todo="See that log; the next command starts a new host process.",
                )
            )
            # Half a start may be left: only a new process is sure to be clean.
            self._ending = "a request failed in a way that was not foreseen"
        else:
            job.outcome.set_result(result)
        self._idle = self._idle.used(time.monotonic())

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "ping" | "touch":
                return self.info.to_json()
            case "runs":
                return {"runs": self._ray.live_runs()}
            case "ensure":
                self._ensure(request)
                return self.info.to_json()
            case "down":
                return {"ending": self._may_end(only_if_unused=bool(request.get("only_if_unused")))}
            case _:
                raise ConfigError(f"The host process knows no operation `{request['op']}`.")

    def _ensure(self, request: dict[str, Any]) -> None:
        if request.get("store"):
            with self._busy("starting the local store", START_LIMIT_S + 10.0):
                self._store.ensure()
        if request.get("ray"):
            with self._busy("starting the local Ray", _RAY_START_S):
                try:
                    self._ray.ensure(request.get("num_cpus"))
                finally:
                    _take_signals(self._on_signal)  # Ray has set its own

    def _may_end(self, *, only_if_unused: bool) -> bool:
        if only_if_unused and (self._ray.live_runs() or count_leases(self._paths.leases)):
            return False
        self._ending = "a command asked for it"
        return True

    def _watch(self) -> None:
        """What is due without anybody asking."""
        with self._busy("looking after Ray and the store", START_LIMIT_S + _STOP_S):
            self._store.start_again_if_dead()
            self._ray.forget_if_dead()
            now = time.monotonic()
            if self._idle.should_look(now):
                busy = bool(count_leases(self._paths.leases) or self._ray.live_runs())
                self._idle = self._idle.looked(now, busy=busy)
        self._publish()
        if self._idle.should_end(now) and self.control.jobs.empty():
            self._ending = f"unused for {self._idle.limit_s:.0f} s"

    def _publish(self) -> None:
        """Keep `host.json` true."""
        if self.info != self._published:
            self._published = self.info
            write_info(self._paths.info, self._published)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._ending = f"signal {signal.Signals(number).name}"
        self.control.wake()

    def _end(self) -> None:
        _log.info("host ends: %s", self._ending or "an error")
        self.control.stop()
        with self._busy("ending", _STOP_S):
            try:
                self._ray.stop()
            finally:
                self._store.stop()
                self._sweep()
        self._paths.info.unlink(missing_ok=True)
        if not any(self._paths.short.iterdir()):
            self._paths.short.rmdir()
        _log.info("host ended")

    def _sweep(self) -> None:
        """Unlink what runs have left in shared memory: vaults that were killed cannot do it themselves."""
        for path in sweep(self._home, now_s=time.time(), grace_s=0.0):
            _log.info("removed what a run had left in shared memory: %s", path)

    @contextmanager
    def _busy(self, what: str, limit_s: float) -> Iterator[None]:
        """Say what is going on, and die of it, with all stacks in the log, if it takes longer than the limit."""
        self._activity = f"{what}, at most {limit_s:.0f} s"
        faulthandler.dump_traceback_later(limit_s, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._activity = "waiting"


def main(arguments: list[str]) -> int:
    """Become the host process of a home, or find that there is one."""
    home = Home(Path(arguments[0]))
    paths = HostPaths.of(home)
    paths.make_folders()
    if not _take_lock(paths.lock):
        return LOCK_HELD
    paths.make_folders()  # the host before this one may have removed a folder when it ended
    if paths.log.exists() and paths.log.stat().st_size > _LONGEST_LOG_BYTES:
        paths.log.replace(paths.log.with_suffix(".log.1"))
    redirect_output(paths.log)
    if os.fork():
        # The child is the host now; what the two share must not be closed properly twice.
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    os.chdir(paths.folder)
    _set_up_logging()
    Host(home, float(os.environ.get(IDLE_VARIABLE, _IDLE_S))).run()
    return 0


def _take_lock(path: Path) -> bool:
    """Hold the lock until this process is gone; nothing ever closes it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def _set_up_logging() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True)
    quiet_process(full_logs=True)


def _take_signals(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
