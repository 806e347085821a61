"""Giving back the room that Ray Train reserved for the workers of an attempt whose controller has died.

Ray keeps a placement group until both its maker and the job are gone, so that a dead controller's would keep its run
from starting again. Ray Train has a process beside every controller for that, which learns of the room only after the
workers live. Here the supervisor asks Ray which groups of its job have lost their maker, at whatever moment it died.
"""

from __future__ import annotations


def give_back() -> None:
    """Remove the placement groups of this job whose makers are dead; others' and living ones are not touched."""
    import ray
    from ray._private.state import state  # the public table does not say who made a group
    from ray._raylet import PlacementGroupID
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    job = ray.get_runtime_context().get_job_id()
    for raw in state._connect_and_get_accessor().get_placement_group_table():  # noqa: SLF001
        group = PlacementGroupTableData.FromString(raw)
        is_left = group.creator_actor_dead and not group.is_detached and group.state != PlacementGroupTableData.REMOVED
        # Without a maker's id it was made by the job's driver: that is no controller's.
        if is_left and group.creator_actor_id and group.creator_job_id.hex() == job:
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))
