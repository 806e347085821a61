"""The room that Ray Train reserves for an attempt: noted in the journal, and given back should its controller die.

Ray Train keeps a process beside every controller for that, which asks for the controller's health each second. Here the
supervisor is that process, and one that was replaced finds in the journal what it has to give back.
"""

from __future__ import annotations

from typing import Any

from stormsail.workers.entry import NAMESPACE

_ANSWER_LIMIT_S = 30.0


def room_note(actor: str, attempt: int) -> Any:
    """A Ray Train callback that tells the supervisor which placement group its workers lie in.

    Args:
        actor: The supervisor's name.
        attempt: The attempt.
    """
    from ray.train.v2._internal.execution.callback import WorkerGroupCallback

    class RoomNote(WorkerGroupCallback):  # type: ignore[misc]  # Ray has no types
        """Runs in the controller."""

        def after_worker_group_start(self, worker_group: Any) -> None:
            """The workers live, and none has begun."""
            import ray

            group = worker_group.get_worker_group_state().placement_group_handle.placement_group
            supervisor = ray.get_actor(actor, namespace=NAMESPACE)
            ray.get(supervisor.placed.remote(attempt, group.id.hex()), timeout=_ANSWER_LIMIT_S)

    return RoomNote()


def give_back(room: str) -> None:
    """Remove a placement group; one that is gone already stays gone.

    Args:
        room: Its id in hexadecimal digits, or "" for none.
    """
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    if room:
        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(room))))
