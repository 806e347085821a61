"""Looking at processes on other nodes; `tests/cluster` does it with real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stormsail.supervisor.evidence import everywhere
from stormsail.supervisor.evidence.found import Found, Target

TARGET = Target(1, 3, 77, "10.0.0.1", "node-a", "/logs")


class LostError(Exception):
    """Stands for Ray's errors."""


def fake_ray(answer: Any) -> Any:
    def get(_task: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=LostError))


def test_a_node_that_fails_is_said_for_each_of_its_processes() -> None:
    found = everywhere._answer(fake_ray(LostError("the node died\nlong story")), object(), [TARGET])
    assert found == [Found(1, "", "", "", "none: its node could not look: the node died", "")]


def test_what_a_node_found_is_passed_on() -> None:
    seen = [Found(1, "S", "", "", "py-spy", "")]
    assert everywhere._answer(fake_ray(seen), object(), [TARGET]) == seen


def test_processes_are_grouped_by_address_and_name() -> None:
    assert everywhere._machine(TARGET) == ("10.0.0.1", "node-a")
