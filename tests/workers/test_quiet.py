"""Noise is dropped, the rest moves to files: checked in processes of their own, because it is for a whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stormsail.workers.quiet import quiet_environment

NOISE = "warnings.warn('`torch.distributed.all_gather_into_tensor` is deprecated. Use another.', FutureWarning)\n"
OTHER = "warnings.warn('something else is deprecated', FutureWarning)\n"


def run(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import logging, os, sys, warnings\n" + code],
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_collectives_deprecation_is_dropped_and_other_warnings_are_not() -> None:
    quiet = "from stormsail.workers.quiet import quiet_process\nquiet_process()\n"
    done = run(quiet + NOISE + OTHER)
    assert "all_gather" not in done.stderr
    assert "something else" in done.stderr


def test_the_environment_does_the_same_for_a_process_yet_to_start() -> None:
    done = run(NOISE + OTHER, quiet_environment())
    assert "all_gather" not in done.stderr
    assert "something else" in done.stderr


def test_filters_that_are_set_already_stay_and_are_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    once = quiet_environment()["PYTHONWARNINGS"]
    assert once.startswith("error::ResourceWarning,ignore:")
    monkeypatch.setenv("PYTHONWARNINGS", once)
    assert quiet_environment()["PYTHONWARNINGS"] == once


@pytest.mark.parametrize(("full_logs", "said"), [(False, "error\n"), (True, "warning\nerror\n")])
def test_deepspeed_shows_errors_alone_unless_its_output_goes_to_a_file(full_logs: bool, said: str) -> None:
    code = (
        f"from stormsail.workers.quiet import quiet_process\nquiet_process(full_logs={full_logs})\n"
        "logger = logging.getLogger('DeepSpeed')\nlogger.setLevel(logging.WARNING)\n"
        "logger.addHandler(logging.StreamHandler(sys.stdout))\nlogger.propagate = False\n"
        "logger.warning('warning')\nlogger.error('error')\n"
    )
    assert run(code).stdout == said


def test_output_of_python_of_c_and_of_children_goes_to_the_end_of_the_file(tmp_path: Path) -> None:
    log = tmp_path / "folder" / "worker.log"
    code = (
        "from pathlib import Path\nfrom stormsail.workers.quiet import redirect_output\n"
        "print('before')\n"
        f"redirect_output(Path({str(log)!r}))\n"
        "print('out')\nprint('err', file=sys.stderr)\nos.write(1, b'raw\\n')\nos.system('echo child')\n"
        "print('last')\nos._exit(0)\n"
    )
    for _ in range(2):
        done = run(code)
        assert done.stdout == "before\n"
        assert done.stderr == ""
    assert log.read_text() == "out\nerr\nraw\nchild\nlast\n" * 2
    assert log.stat().st_mode & 0o777 == 0o600
