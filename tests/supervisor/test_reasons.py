"""The one line that says why."""

from __future__ import annotations

import pytest

from stormsail.platform.messages import CheckpointRef, FaultKind, Tier
from stormsail.supervisor import reasons
from stormsail.supervisor.candidates import Choice
from stormsail.supervisor.ladder_state import Episode


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_kind_of_fault_has_words(kind: FaultKind) -> None:
    assert reasons.what(kind, 57, "").endswith("at step 57")


def test_a_fault_before_the_first_step_is_told_as_such_and_with_its_detail() -> None:
    assert reasons.what(FaultKind.PROCESS, -1, "SIGKILL") == "a process was lost before its first step (SIGKILL)"


def test_a_place_is_told_with_its_generation_and_its_shortcoming() -> None:
    assert reasons.place(Choice(CheckpointRef(3, 50))) == "step 50 (generation 3)"
    assert reasons.place(Choice(None, "there is no checkpoint")) == "the initial state [there is no checkpoint]"


def test_a_cause_says_whether_it_is_a_recurrence() -> None:
    episode = Episode(number=2, tier=Tier.ROLLBACK, opened_step=57, opened_time_s=0.0, onset=55, last_step=57)
    assert reasons.cause("loss spike at step 57", episode, opened=True) == "loss spike at step 57 opens episode 2"
    assert reasons.cause("loss spike at step 57", episode, opened=False).endswith("again inside episode 2")


def test_an_action_is_told_whole() -> None:
    episode = Episode(number=2, tier=Tier.ROLLBACK, opened_step=57, opened_time_s=0.0, onset=55, last_step=57)
    line = reasons.action(episode, Choice(CheckpointRef(1, 40)), factor=0.64, fp32_until=68, why="because")
    assert line == (
        "tier 2, rollback to step 40 (generation 1); learning rate at 0.64 of the schedule; FP32 up to step 68; because"
    )


def test_a_plain_action_is_told_without_what_it_lacks() -> None:
    episode = Episode(number=1, tier=Tier.RESUME, opened_step=57, opened_time_s=0.0, onset=57, last_step=57)
    line = reasons.action(episode, Choice(CheckpointRef(1, 50)), factor=None, fp32_until=None, why="")
    assert line == "tier 1, resume from step 50 (generation 1)"
