"""When a rank that does not move is called stuck, and what that may cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stormsail.platform.config.section import Positive, Seconds, Section


class HangSection(Section):
    """When a rank that does not move is called stuck, and how long evidence may be gathered before it is ended."""

    factor: Annotated[float, Field(ge=2.0)] = Field(
        10.0,
        description="a step, or the copying of a save, may take this many times the longest one of its attempt; "
        "cluster.step_timeout_s caps the limit of a step",
    )
    floor_s: Seconds = Field(60.0, description="a limit that was learned is never shorter than this")
    learn_steps: Positive = Field(
        20, description="steps, or saves, of all ranks together, before a limit is learned from them"
    )
    silent_s: Seconds = Field(
        5.0, description="a rank whose heartbeats stay away for this long is blamed first; they come twice a second"
    )
    evidence_s: Seconds = Field(20.0, description="limit for stacks and other evidence, before anything is ended")
