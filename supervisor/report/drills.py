"""Which injected fault led to which incident, and whether the run got over it; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stormsail.platform.messages import FaultKind
from stormsail.supervisor.report.fields import EventLike, step_of, text, whole
from stormsail.supervisor.report.model import DrillEntry, DrillFault, IncidentEntry, Twin

_INFRASTRUCTURE = {"kill", "raise"}


def drill_entry(
    events: Sequence[EventLike], incident_of: Mapping[int, IncidentEntry], last_step: int
) -> DrillEntry | None:
    """Sum up a drill; None where nothing was injected and no twin was asked for.

    Args:
        events: The journal.
        incident_of: The incident that each `fault.detected` event belongs to, by its journal number.
        last_step: Last step of the live line (-1: none).
    """
    first: dict[int, EventLike] = {}
    for event in events:
        if event.kind == "drill.fired":
            first.setdefault(whole(event.data, "index") or 0, event)
    fired = [
        _fault(index, event, _match(event, list(first.values()), events, incident_of), last_step)
        for index, event in sorted(first.items())
    ]
    twin = next((_twin(event) for event in reversed(events) if event.kind == "drill.twin"), None)
    if not fired and twin is None:
        return None
    return DrillEntry(len(fired), sum(fault.recovered for fault in fired), tuple(fired), twin)


def _fault(index: int, event: EventLike, incident: IncidentEntry | None, last_step: int) -> DrillFault:
    step = step_of(event)
    return DrillFault(
        index=index,
        kind=text(event.data, "kind"),
        step=step,
        incident=None if incident is None else incident.number,
        recovered=incident.recovered if incident is not None else step is not None and last_step > step,
    )


def _match(
    event: EventLike, fired: list[EventLike], events: Sequence[EventLike], incident_of: Mapping[int, IncidentEntry]
) -> IncidentEntry | None:
    """Find the first incident of the fault's class after it fired and before the next one of its class did."""
    later = [other.number for other in fired if other.number > event.number and _infra(other) == _infra(event)]
    limit = min(later, default=None)
    for fault in events:
        inside = fault.number > event.number and (limit is None or fault.number < limit)
        if fault.number in incident_of and inside and _infra(fault) == _infra(event):
            return incident_of[fault.number]
    return None


def _infra(event: EventLike) -> bool:
    kind = text(event.data, "kind")
    if event.kind == "drill.fired":
        return kind in _INFRASTRUCTURE
    return kind in {str(known) for known in FaultKind if not known.numeric}


def _twin(event: EventLike) -> Twin:
    return Twin(
        step=step_of(event),
        digest=text(event.data, "digest"),
        twin_digest=text(event.data, "twin_digest"),
        identical=event.data.get("identical") is True,
    )
