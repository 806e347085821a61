"""What a hanging process can be asked for from outside."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stormsail.workers.stacks import STACKS_SIGNAL, flight_record, register_stacks, stacks_file


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = stacks_file(tmp_path / "logs", 3)
    register_stacks(path)
    yield path
    faulthandler.unregister(STACKS_SIGNAL)


def test_a_signal_makes_the_process_write_its_stacks(file: Path) -> None:
    assert file.name == "rank-3.stacks"
    os.kill(os.getpid(), STACKS_SIGNAL)
    limit = time.monotonic() + 10.0
    while not file.read_text(encoding="utf-8") and time.monotonic() < limit:
        time.sleep(0.01)
    assert "test_a_signal_makes_the_process_write_its_stacks" in file.read_text(encoding="utf-8")


def test_without_a_process_group_there_are_no_collectives() -> None:
    assert flight_record() == ""
