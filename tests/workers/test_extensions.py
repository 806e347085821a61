"""One folder for each build environment, and workers that load from it without compiling."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stormsail.platform.errors import ClusterError
from stormsail.platform.home import Home
from stormsail.workers.extensions import (
    Built,
    extension_folder,
    load_extensions,
    path_with_tools,
    read_built,
    set_extension_environment,
    write_built,
)

LOAD = """
import sys, torch
from pathlib import Path
from stormsail.workers.extensions import load_extensions
print(load_extensions(Path(sys.argv[1])), load_extensions(Path(sys.argv[1])))
from deepspeed.comm.torch import build_shm_op
print(build_shm_op().__file__)
"""


def test_the_folder_is_stable_and_below_the_home(tmp_path: Path) -> None:
    folder = extension_folder(Home(tmp_path))
    assert folder == extension_folder(Home(tmp_path))
    assert folder.parent == Home(tmp_path).extensions
    assert not folder.exists()


def test_another_compiler_or_accelerator_gets_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = extension_folder(Home(tmp_path))
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\necho another compiler 1.0\n")
    fake.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(fake))
        assert extension_folder(Home(tmp_path)) != plain
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert extension_folder(Home(tmp_path)) != plain


def test_without_a_compiler_a_finished_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = extension_folder(Home(tmp_path))
    finished.mkdir(parents=True)
    write_built(finished, Built("cpu", {}))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert extension_folder(Home(tmp_path)) == finished
    assert extension_folder(Home(tmp_path / "empty")) != finished


def test_a_folder_that_lost_a_library_is_not_built(tmp_path: Path) -> None:
    assert read_built(tmp_path) is None
    (tmp_path / "op").mkdir()
    (tmp_path / "op/op.so").touch()
    built = Built("cpu", {"op": "op/op.so"})
    write_built(tmp_path, built)
    assert read_built(tmp_path) == built
    shutil.rmtree(tmp_path / "op")
    assert read_built(tmp_path) is None


def test_a_half_written_marker_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text('{"accelerator": "cp')
    assert read_built(tmp_path) is None


def test_loading_from_a_folder_that_was_not_built_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="not built in this folder"):
        load_extensions(tmp_path)


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "op.so").write_text("no library")
    write_built(tmp_path, Built("cpu", {"damaged_op": "op.so"}))
    with pytest.raises(ClusterError, match=r"op.so: The compiled extension cannot be loaded"):
        load_extensions(tmp_path)


def test_the_tools_of_this_python_are_found_though_it_is_not_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert path_with_tools() == f"{Path(sys.executable).parent}:/usr/bin"
    monkeypatch.setenv("PATH", path_with_tools())
    assert path_with_tools() == f"{Path(sys.executable).parent}:/usr/bin"


def test_torch_is_told_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_EXTENSIONS_DIR", "MAX_JOBS", "PATH"):
        monkeypatch.setenv(name, "")
    set_extension_environment(tmp_path)
    assert os.environ["TORCH_EXTENSIONS_DIR"] == str(tmp_path)
    assert int(os.environ["MAX_JOBS"]) >= 1


@pytest.mark.timeout(1000)
def test_another_process_loads_it_without_a_compiler_and_past_a_stale_lock(
    built_extensions: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built_extensions, copy)
    built = read_built(copy)
    assert built is not None
    for name in built.libraries:
        (copy / name / "lock").touch()
    (tmp_path / "bin").mkdir()
    environment = os.environ | {"PATH": str(tmp_path / "bin"), "TORCH_EXTENSIONS_DIR": str(copy), "CXX": "none"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(copy)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    assert "('deepspeed_shm_comm',) ('deepspeed_shm_comm',)" in done.stdout
    assert done.stdout.strip().endswith(str(copy / "deepspeed_shm_comm/deepspeed_shm_comm.so"))
