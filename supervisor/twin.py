"""The undisturbed twin that a drill is proved by: the run that it is, and the digests that are compared. Pure."""

from __future__ import annotations

from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal_events import Event

_LONGEST_NAME = 63
_TWIN = "-twin"


def twin_of(config: RunConfig) -> RunConfig:
    """The same run without faults and evaluations, under a name of its own."""
    drill = config.drill.model_copy(update={"faults": (), "twin_step": None})
    name = f"{config.name[: _LONGEST_NAME - len(_TWIN)]}{_TWIN}"
    return config.unevaluated().model_copy(update={"name": name, "drill": drill, "alerts": AlertsSection()})


def digest_at(events: list[Event], step: int) -> str | None:
    """The digest of the state when a step was first reached, from its checkpoint (None: there was none).

    A later repair may pass the step again, at another learning rate or in another precision; that is another state.
    """
    found = [e.data["digest"] for e in events if e.kind == "checkpoint.committed" and e.step == step]
    return str(found[0]) if found else None
