"""What the ladder remembers: episodes, budgets and what failed, as one value that goes through the journal; pure."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef, Tier

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Restore:
    """A state that a tier went back to (ref None: the initial state)."""

    tier: Tier
    ref: CheckpointRef | None


@dataclass(frozen=True, slots=True)
class Episode:
    """One climb of the ladder.

    Attributes:
        number: Counts from 1 within the run.
        tier: The last tier tried.
        opened_step: Step of the fault that opened it.
        opened_time_s: When, in seconds since the epoch.
        onset: First anomalous step; for an infrastructure fault the step it happened at.
        last_step: Last anomalous step; for an infrastructure fault the highest step reached.
        restores: What each tier went back to, in order.
        healthy_past: Healthy steps beyond `last_step` since the last repair.
    """

    number: int
    tier: Tier
    opened_step: int
    opened_time_s: float
    onset: int
    last_step: int
    restores: tuple[Restore, ...] = ()
    healthy_past: int = 0


@dataclass(frozen=True, slots=True)
class LadderState:
    """All that decisions depend on besides the fault, the checkpoints and the policy. It never rolls back.

    Attributes:
        numeric: The open numeric episode, if any.
        infra: The open infrastructure episode, if any; it may lie inside a numeric one.
        episodes: Episodes so far, ever.
        spent: Episodes since the budgets were last reset.
        recent_s: When the episodes of the last hour opened, in seconds since the epoch.
        healthy_steps: Healthy steps since the last fault.
        completed: Highest step completed since the last repair (-1: none).
        ever_completed: Whether any step of the run was ever completed.
        user_error: Signature and step of the last error of the user's code that has not been passed since.
        loaded: The checkpoint of the last repair (None: the initial state, or no repair yet).
        failures: How often loading a checkpoint led to trouble again, since the ladder was last at rest.
        fp32_until: Steps below this one are computed in FP32 whenever they are computed again (None: none).
        skip: Sample ranges [start, stop) that stay left out.
    """

    numeric: Episode | None = None
    infra: Episode | None = None
    episodes: int = 0
    spent: int = 0
    recent_s: tuple[float, ...] = ()
    healthy_steps: int = 0
    completed: int = -1
    ever_completed: bool = False
    user_error: tuple[str, int] | None = None
    loaded: CheckpointRef | None = None
    failures: tuple[tuple[CheckpointRef, int], ...] = ()
    fp32_until: int | None = None
    skip: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {"format": FORMAT, **_adapter().dump_python(self, mode="json")}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> LadderState:
        """Make the state again from what `to_json` gave.

        Raises:
            InternalError: The data is not a ladder state of this format.
        """
        fields = dict(data)
        found = fields.pop("format", None)
        if found != FORMAT:
            raise InternalError(
                f"the journal holds a ladder state of format {found}; this version reads format {FORMAT}",
                todo="Continue the run with the version of Stormsail that wrote it.",
            )
        absent = sorted({field.name for field in dataclasses.fields(cls)} ^ set(fields))
        if absent:
            raise InternalError(f"the journalled ladder state has other fields than expected: {', '.join(absent)}")
        try:
            return _adapter().validate_json(json.dumps(fields), strict=True)
        except ValidationError as error:
            raise InternalError(f"the journalled ladder state cannot be read: {error}") from error


def with_episode(state: LadderState, episode: Episode, *, numeric: bool) -> LadderState:
    """Put an episode where its class has its place."""
    return replace(state, numeric=episode) if numeric else replace(state, infra=episode)


def at_rest(state: LadderState) -> LadderState:
    """Forget which checkpoints failed once no episode is open: what followed has cleared them."""
    return replace(state, failures=()) if state.numeric is None and state.infra is None else state


@functools.cache
def _adapter() -> TypeAdapter[LadderState]:
    return TypeAdapter(LadderState)
