"""The time limit of a trial."""

from __future__ import annotations

import subprocess
import sys

from stormsail.tuning.limits import OverTimeError, process_ends_after


def test_it_says_how_far_the_trial_came_and_what_to_raise() -> None:
    said = OverTimeError.at(7, 100, 60.0)
    assert "over its time limit of 60 s after 7 of 100 steps" in str(said)
    assert "trials.time_limit_s" in str(said)
    assert said.exit_code == 75


def test_a_process_that_hangs_is_ended_and_says_so() -> None:
    code = (
        "import threading\n"
        "from stormsail.tuning.limits import process_ends_after\n"
        "with process_ends_after(0.05, 'w32-abc'):\n"
        "    threading.Event().wait(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 75
    assert "w32-abc: nothing for 0.05 s; its process is ended" in ended.stderr


def test_one_that_comes_to_its_end_is_left_alone() -> None:
    import threading

    with process_ends_after(3600.0, "w32-abc"):
        begun = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    for one in begun:
        one.join(10.0)
    assert begun
    assert not any(one.is_alive() for one in begun)
