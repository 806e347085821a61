"""A machine of a test's own: a home folder, the real `stormsail` command in it, and its runs to read afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stormsail.platform.home import Home
from stormsail.platform.journal_events import Event
from stormsail.platform.runs import RunPlace
from stormsail.supervisor import places
from stormsail.supervisor.host.paths import HostPaths
from stormsail.supervisor.reading import ReadRun, Row, read_run

# What a test must not inherit from the shell that it was started in.
_FOREIGN = ("RAY_", "STORMSAIL", "AWS_", "MLFLOW_", "NO_COLOR", "FORCE_COLOR")

Config = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended.

    Attributes:
        code: Its exit code.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Its output, which must be exactly one JSON object."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass(slots=True)
class Machine:
    """One home folder with the real command, its local host process and its runs.

    Attributes:
        home: `STORMSAIL_HOME`.
        folder: Where configurations are written and commands are typed.
        base: Configuration that every run begins with.
        environment: Variables added to every command.
    """

    home: Path
    folder: Path
    base: Config
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, **sections: Any) -> Path:
        """Write a run's configuration: the base, with these sections laid over it key by key."""
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(merged(self.base, {"name": name, **sections}), indent=2), encoding="utf-8")
        return path

    def run(
        self,
        *words: str | Path,
        expect: int = 0,
        timeout_s: float = 600.0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run `stormsail WORDS` to its end and check the exit code."""
        done = subprocess.run(
            self.command(*words),
            cwd=cwd or self.folder,
            env=self.variables(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
        assert ended.code == expect, f"stormsail {' '.join(map(str, words))}: expected exit {expect}, got {ended}"
        return ended

    @contextmanager
    def started(self, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Run `stormsail WORDS` beside the test; whatever is left of the command at the end is killed."""
        process = subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.variables(None),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60.0)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def ray_process(self, title: str) -> int:
        """The one process with this title on this machine's own Ray."""
        [pid] = self.ray_processes(title)
        return pid

    def ray_processes(self, title: str) -> list[int]:
        """All processes whose title begins so on this machine's own Ray."""
        folder = str(HostPaths.of(Home(self.home)).short)
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (path / "cmdline").read_bytes().startswith(title.encode()):
                    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                    if folder in Path(f"/proc/{parent}/cmdline").read_text():
                        found.append(int(path.name))
        return found

    def command(self, *words: str | Path) -> list[str]:
        """The command line; the console script that was installed beside this Python."""
        return [str(Path(sys.executable).with_name("stormsail")), *map(str, words)]

    def variables(self, more: Mapping[str, str] | None) -> dict[str, str]:
        """The environment of a command."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return kept | {"STORMSAIL_HOME": str(self.home)} | self.environment | dict(more or {})

    def place(self, name: str) -> RunPlace:
        """Where a run lives."""
        return places.locate(Home(self.home), name, None, print)

    def read(self, name: str) -> ReadRun:
        """A run as its storage tells it."""
        return read_run(self.place(name))

    def await_events(self, name: str, enough: Callable[[list[Event]], bool], *, within_s: float) -> list[Event]:
        """Look at a run's journal until it tells enough."""
        return wait_for(lambda: self._events(name), enough, within_s=within_s)

    def _events(self, name: str) -> list[Event]:
        place = places.locate(Home(self.home), name, None, print) if places.recall(Home(self.home), name) else None
        return [] if place is None else read_run(place).events


def wait_for(look: Callable[[], T], enough: Callable[[T], bool], *, within_s: float) -> T:
    """Look again and again until it is enough; fails with the last sight when the time is up."""
    deadline = time.monotonic() + within_s
    while not enough(found := look()):
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s; last seen: {found}"
        time.sleep(0.2)
    return found


def ending(process: subprocess.Popen[str], *, within_s: float) -> Ended:
    """Wait for a command that was started, and take what it wrote."""
    out, err = process.communicate(timeout=within_s)
    return Ended(process.returncode, out, err)


@contextmanager
def brake(pedal: Path) -> Iterator[None]:
    """Let runs with this brake crawl for as long as the block runs; see `paced`."""
    pedal.touch()
    try:
        yield
    finally:
        pedal.unlink(missing_ok=True)


def paced(
    base: Config, *, pace_s: float = 0.0, brake: Path | None = None, crawl_s: float = 0.5, free: int = 0
) -> Config:
    """The base's data at a pace: seconds a sample, `crawl_s` under the brake, which `free` samples of each process ignore."""
    args = {"path": base["data"]["args"]["path"], "pace_s": pace_s, "crawl_s": crawl_s, "free": free}
    return {"factory": "paced:build", "args": args if brake is None else {**args, "brake": str(brake)}}


def merged(base: Config, over: Config) -> Config:
    """`over` laid over `base`: mappings key by key, everything else replaced."""
    both = {
        key: merged(base[key], value) if isinstance(base.get(key), dict) and isinstance(value, dict) else value
        for key, value in over.items()
    }
    return {**base, **both}


def kinds(events: list[Event]) -> list[str]:
    """Only the kinds, in order."""
    return [event.kind for event in events]


def data(event: Event) -> dict[str, Any]:
    """What an event holds, typed by what its kind promises."""
    return event.data


def of_kind(events: list[Event], kind: str) -> list[Event]:
    """The events of one kind, in order."""
    return [event for event in events if event.kind == kind]


def final_rows(run: ReadRun) -> dict[int, Row]:
    """For each step the row that counts: the one that was computed last."""
    return {int(row["step"]): row for row in run.rows}
