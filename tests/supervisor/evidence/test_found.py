"""What was found of a hanging process, for people."""

from __future__ import annotations

import pytest

from stormsail.supervisor.evidence.found import Found, Target, render

TARGET = Target(1, 3, 77, "10.0.0.1", "node-a", "/logs")


def test_the_text_tells_which_process_and_what_was_seen() -> None:
    text = render(TARGET, Found(1, "S (sleeping)", "77 python: S futex_wait", "Thread 77", "py-spy", "last words"))
    assert text.startswith("rank 1: worker 3, pid 77 on node-a (10.0.0.1)\nprocess: S (sleeping)")
    assert "== stacks (py-spy)\nThread 77" in text
    assert "futex_wait" in text
    assert text.endswith("== end of its log\nlast words\n")


def test_what_could_not_be_seen_is_said() -> None:
    text = render(TARGET, Found(1, "", "", "", "none: its node did not answer in time", ""))
    assert "could not be looked at" in text
    assert "== stacks (none: its node did not answer in time)\nnone" in text


@pytest.mark.parametrize(
    ("state", "stopped", "gone"),
    [
        ("T (stopped)", True, False),
        ("t (tracing stop)", True, False),
        ("S (sleeping)", False, False),
        ("Z (zombie)", False, True),
        ("gone", False, True),
        ("", False, False),
    ],
)
def test_the_kernels_word_tells_a_stopped_process_from_one_that_is_gone(state: str, stopped: bool, gone: bool) -> None:
    found = Found(0, state, "", "", "", "")
    assert (found.stopped, found.gone) == (stopped, gone)
