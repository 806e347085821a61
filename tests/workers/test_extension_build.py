"""Builds that are killed, blocked, raced, impossible or too slow, with DeepSpeed's real builder and torch's real build.

The compiler is a script that takes object files from a finished build, so that a whole build takes seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stormsail.platform.errors import ClusterError
from stormsail.workers.extension_build import BuildResult, build_extensions
from stormsail.workers.extensions import Built, read_built, write_built

OPERATION = "deepspeed_shm_comm"
# Each builds with a real process that imports torch and DeepSpeed: too long for the fast part of the suite.
slow = pytest.mark.cluster
pytestmark = pytest.mark.timeout(1000)

COMPILER = """#!/bin/sh
{before}
for word; do last=$word; done
case "$*" in
*" -c "*) cp {objects}/"$(basename "$last")" "$last" ;;
*) exec {compiler} "$@" ;;
esac
"""


@pytest.fixture
def compile_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_extensions: Path) -> Callable[[str], None]:
    def prepare(before: str) -> None:
        script = tmp_path / "compiler"
        real = shutil.which("c++")
        script.write_text(COMPILER.format(before=before, objects=built_extensions / OPERATION, compiler=real))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    return prepare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "extensions"


def build(folder: Path, said: list[str] | None = None, deadline_s: float = 300.0) -> BuildResult:
    lines: list[str] = [] if said is None else said
    return build_extensions(folder, deadline_s=deadline_s, notify=lines.append)


def test_a_finished_folder_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    write_built(folder, Built("cuda", {}))
    before = sorted(folder.iterdir())
    result = build(folder)
    assert result.built == ()
    assert sorted(folder.iterdir()) == before


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_a_stale_lock_in_a_finished_folder_is_removed_and_said(folder: Path) -> None:
    (folder / OPERATION).mkdir(parents=True)
    (folder / OPERATION / "lib.so").touch()
    write_built(folder, Built("cpu", {OPERATION: f"{OPERATION}/lib.so"}))
    lock = folder / OPERATION / "lock"
    lock.touch()
    said: list[str] = []
    result = build(folder, said)
    assert result.removed_locks == (lock,)
    assert not lock.exists()
    assert any(str(lock) in line for line in said)
    assert result.built == ()


@slow
def test_a_lock_left_by_a_killed_build_does_not_block_the_next(
    folder: Path, compile_with: Callable[[str], None]
) -> None:
    compile_with("")
    (folder / OPERATION).mkdir(parents=True)
    lock = folder / OPERATION / "lock"
    lock.touch()
    (folder / ".build-dead").mkdir()
    result = build(folder)
    assert result.removed_locks == (lock,)
    assert result.built == (OPERATION,)
    assert read_built(folder) == Built("cpu", {OPERATION: f"{OPERATION}/{OPERATION}.so"})
    assert not list(folder.glob(".build-*"))


@slow
def test_of_two_builders_one_compiles_and_the_other_waits_for_it(
    folder: Path, compile_with: Callable[[str], None]
) -> None:
    compile_with("sleep 1")
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: build(folder), range(2)))
    assert sorted(result.built for result in results) == [(), (OPERATION,)]


@slow
def test_a_build_that_takes_too_long_ends_with_all_its_compilers(
    folder: Path, compile_with: Callable[[str], None]
) -> None:
    compile_with("sleep 900")
    with pytest.raises(ClusterError, match=r"build\.log: .*not finished after 8 s"):
        build(folder, deadline_s=8.0)
    assert not processes_about(folder)
    compile_with("")
    assert build(folder).built == (OPERATION,)


@slow
def test_a_missing_compiler_is_named_with_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    with pytest.raises(ClusterError, match=r"no `no-such-c\+\+`(.|\n)*apt-get install g\+\+"):
        build(folder)


@slow
def test_a_failed_compilation_shows_its_first_error_and_what_helps(
    folder: Path, compile_with: Callable[[str], None]
) -> None:
    compile_with('case "$*" in *" -c "*) echo "x.h:1: fatal error: Python.h: No such file" >&2; exit 1;; esac')
    with pytest.raises(ClusterError, match=r"fatal error: Python\.h(.|\n)*python3-dev"):
        build(folder)
    assert read_built(folder) is None


@slow
def test_a_start_that_is_killed_while_it_compiles_neither_blocks_nor_spoils_the_next(
    folder: Path, compile_with: Callable[[str], None], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    compile_with(f"touch {folder}/compiling; sleep 2")
    code = (
        "import sys\nfrom pathlib import Path\nfrom stormsail.workers.extension_build import build_extensions\n"
        "build_extensions(Path(sys.argv[1]), notify=print)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.DEVNULL) as first:
        wait_for((folder / "compiling").exists)
        first.kill()
    assert build(folder).built == ()  # the orphan kept the lock, finished, and its work was used
    assert read_built(folder) is not None


@slow
def test_a_builder_that_is_killed_leaves_the_folder_free(
    folder: Path, compile_with: Callable[[str], None], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    compile_with(f"touch {folder}/compiling; sleep 2")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(build, folder)
        wait_for((folder / "compiling").exists)
        os.kill(int((folder / "build.flock").read_text().split()[1]), signal.SIGKILL)
        with pytest.raises(ClusterError):
            first.result()
    compile_with("")
    assert build(folder).built == (OPERATION,)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    import time

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 100.0
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    return wait


def processes_about(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found
