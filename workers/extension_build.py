"""Builds DeepSpeed's C++ extensions once, before the first attempt, with progress, a limit and clear errors.

One builder at a time for each folder, by a kernel lock that is released when its holder dies, however it
dies. In an image: `python -m stormsail.workers.extension_build`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stormsail.platform.errors import ClusterError
from stormsail.platform.home import Home
from stormsail.workers.extensions import CPU_BUILDERS, compiler, extension_folder, path_with_tools, read_built

Notify = Callable[[str], None]

_PROGRESS_S = 5.0
_POLL_S = 0.1
# A library that is up to date holds torch's lock for some 10 ms; whoever holds it longer here is dead.
_LOCK_PATIENCE_S = 2.0
_HINTS = (
    ("Python.h", "Python's headers are missing: install them (Debian: `apt-get install python3-dev`)."),
    ("ninja", "The build tool ninja is missing or broken: `pip install ninja` into this environment."),
    ("omp.h", "OpenMP's headers are missing: install them (Debian: `apt-get install g++ libgomp1`)."),
    ("No space left", "Free some space; about 100 MB are needed."),
    ("Killed", "The compiler was killed, most likely for want of memory: free some, or set MAX_JOBS=1."),
)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What one call did.

    Attributes:
        folder: Holds the libraries now.
        built: Operations that this call compiled; empty where they were there or none is needed.
        took_s: Seconds that the call took.
        removed_locks: Stale lock files that were in the way.
    """

    folder: Path
    built: tuple[str, ...]
    took_s: float
    removed_locks: tuple[Path, ...]


@dataclass(slots=True)
class _Progress:
    """Says every few seconds what is being waited for, and knows when to stop waiting."""

    deadline_s: float
    notify: Notify
    started_s: float
    said_s: float

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.passed_s

    def tick(self, what: str) -> None:
        if time.monotonic() - self.said_s >= _PROGRESS_S:
            self.said_s = time.monotonic()
            self.notify(f"{what}: {self.passed_s:.0f} s so far, at most {self.deadline_s:.0f} s")
        time.sleep(_POLL_S)


def build_extensions(folder: Path, *, deadline_s: float = 900.0, notify: Notify) -> BuildResult:
    """Make sure that `folder` holds what DeepSpeed would compile on this machine; milliseconds if it does.

    Where DeepSpeed finds a GPU nothing is compiled, and that is remembered. Several processes may call this
    at once: one compiles, the others wait for it.

    Args:
        folder: From `extension_folder`.
        deadline_s: Limit of the whole call.
        notify: Gets a line when something takes long or is out of order.

    Raises:
        ClusterError: No compiler, a failed build, or the limit was reached; the message names the build log.
    """
    progress = _Progress(deadline_s, notify, time.monotonic(), time.monotonic())
    if read_built(folder) is not None and not _lock_files(folder):
        return BuildResult(folder, (), progress.passed_s, ())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _only_one(folder, progress) as lock:
        removed = _remove_stale_locks(folder, notify)
        built: tuple[str, ...] = ()
        if read_built(folder) is None:
            built = _build(folder, lock, progress)
        return BuildResult(folder, built, progress.passed_s, removed)


def _lock_files(folder: Path) -> list[Path]:
    """Torch's lock files of the operations that are ours to build."""
    candidates = (folder / name / "lock" for name in CPU_BUILDERS.values())
    return [path for path in candidates if path.exists()]


@contextmanager
def _only_one(folder: Path, progress: _Progress) -> Iterator[IO[str]]:
    """Hold the folder's lock; the yielded file carries it, also into a child that inherits it."""
    with (folder / "build.flock").open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                if progress.left_s <= 0:
                    raise ClusterError(
                        f"DeepSpeed's C++ extensions are still being compiled by {holder} after {progress.deadline_s:.0f} s.",
                        where=str(folder),
                        todo=f"See {_log(folder)}; end that process if it hangs, and start again.",
                    ) from None
                progress.tick(f"waiting for {holder}, which compiles DeepSpeed's C++ extensions")
        yield file


def _remove_stale_locks(folder: Path, notify: Notify) -> tuple[Path, ...]:
    removed = []
    for path in _lock_files(folder):
        limit = time.monotonic() + _LOCK_PATIENCE_S
        while path.exists() and time.monotonic() < limit:
            time.sleep(_POLL_S)
        if path.exists():
            path.unlink(missing_ok=True)
            notify(f"removed a stale build lock, left by a process that was killed: {path}")
            removed.append(path)
    return tuple(removed)


def _build(folder: Path, lock: IO[str], progress: _Progress) -> tuple[str, ...]:
    progress.notify(f"compiling DeepSpeed's C++ extensions, once (about a minute; log: {_log(folder)})")
    command = [
        sys.executable,
        "-m",
        "stormsail.workers.extension_compile",
        str(folder),
        f"{max(progress.left_s, 1.0):.1f}",
    ]
    with _log(folder).open("w", encoding="utf-8") as log:
        child = subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
    lock.truncate(0)
    lock.write(f"process {child.pid}")
    lock.flush()
    try:
        _await(child, progress)
    finally:
        _end(child)
        lock.truncate(0)
    built = read_built(folder)
    if child.returncode != 0 or built is None:
        raise _failure(folder, progress)
    return tuple(built.libraries)


def _await(child: subprocess.Popen[bytes], progress: _Progress) -> None:
    """Wait for the child; it ends itself at the limit, so that this gives up only a little later."""
    while child.poll() is None and progress.left_s > -2.0:  # noqa: PLR2004 - seconds of grace, used once
        progress.tick("compiling DeepSpeed's C++ extensions")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the whole build: compilers are grandchildren and would go on."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _failure(folder: Path, progress: _Progress) -> ClusterError:
    log = _log(folder)
    # Asked for only now: where there is a GPU the build needs neither.
    for tool, package in ((compiler(), "g++"), ("ninja", "ninja-build")):
        if shutil.which(tool, path=path_with_tools()) is None:
            return ClusterError(
                f"DeepSpeed must compile a C++ extension once, and there is no `{tool}` on this machine.",
                where=str(folder),
                todo=f"Install it (Debian: `apt-get install {package}`) and start again.",
            )
    text = log.read_text(encoding="utf-8", errors="replace")
    if progress.left_s <= 0:
        what = f"Compiling DeepSpeed's C++ extensions was not finished after {progress.deadline_s:.0f} s."
        return ClusterError(what, where=str(log), todo="Busy cores make it slow: start again, with a longer limit.")
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    first = lines[0] if lines else (text.strip().splitlines() or ["no output"])[-1]
    hint = next((hint for sign, hint in _HINTS if sign in text), "The log has the compiler's whole output.")
    return ClusterError(f"Compiling DeepSpeed's C++ extensions failed: {first}", where=str(log), todo=hint)


def _log(folder: Path) -> Path:
    return folder / "build.log"


if __name__ == "__main__":
    outcome = build_extensions(extension_folder(Home.here()), notify=lambda line: print(line, file=sys.stderr))  # noqa: T201 - a command
    print(outcome.folder)  # noqa: T201 - the command's answer
