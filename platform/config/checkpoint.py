"""When state is saved, in which form, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from stormsail.platform.checkpoint.interval import (
    KEYFRAME_BYTES_PER_PARAMETER,
    LOG_BYTES_PER_PARAMETER,
    ROUNDED_BYTES_PER_PARAMETER,
    best_interval,
)
from stormsail.platform.config.section import Count, Positive, Seconds, Section


class CheckpointSection(Section):
    """When state is saved, and what is kept."""

    every_steps: Positive | Literal["auto"] = Field(
        10,
        description="steps between two checkpoints; `auto`, with a gradient log: as many as move the fewest bytes",
    )
    steps_per_failure: Positive = Field(1000, description="steps between two failures, as far as `auto` need know")
    keep_last: Positive = Field(
        3, description="newest good checkpoints to keep; what the ladder may need is always kept"
    )
    keep_every_steps: Positive | None = Field(
        None, description="also keep the first good checkpoint of each stretch of so many steps, for ever"
    )
    keep_every_hours: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="also keep the first good checkpoint of each stretch of so many hours, for ever"
    )
    keep_best: bool = Field(
        default=False,
        description="also keep the good one with the lowest evaluation loss, until another is better; needs eval.every_steps",
    )
    good_after_steps: Count = Field(20, description="healthy steps beyond a checkpoint before it is known good")
    deadline_s: Seconds = Field(300.0, description="limit of one save; a later one is abandoned")
    ring: Positive = Field(3, description="newest snapshots of each rank that stay in its node's memory")
    vault_gib: Annotated[float, Field(ge=0.0)] | None = Field(
        None,
        description="GiB of each node's shared memory for snapshots that survive a worker; "
        "null: half of what is free there; 0: none",
    )
    max_missed: Positive = Field(3, description="saves missed in a row before an alert")
    gradient_log: Literal["off", "vault", "store"] = Field(
        "off",
        description="keep each step's gradient as bf16, so that no finished step is lost: with a process or one of several "
        "nodes (`vault`, in its node's memory and its buddy's) or with all of them (`store`); gradients are then rounded to bf16, as part of the run's arithmetic",
    )
    deltas: bool = Field(
        default=True,
        description="write differences to the last keyframe: fewer bytes, same state; 8 bytes of memory for a parameter; "
        "with a gradient log only in rounding mode",
    )
    rounding: bool = Field(
        default=False,
        description="at each checkpoint step round the live state (masters to 15 mantissa bits, moments to 7), which "
        "makes checkpoints half as large; part of the run's arithmetic",
    )
    max_deltas: Positive = Field(10, description="differences on one keyframe before the next one is written")
    max_delta_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.97, description="size of a difference over its keyframe's from which on a rank writes in full"
    )

    @property
    def interval(self) -> int:
        """Steps between two checkpoints."""
        if self.every_steps != "auto":
            return self.every_steps
        return best_interval(
            keyframe_bytes=self.keyframe_bytes_per_parameter,
            log_bytes=LOG_BYTES_PER_PARAMETER,
            steps_per_failure=self.steps_per_failure,
        )

    @property
    def keyframe_bytes_per_parameter(self) -> float:
        """What a checkpoint that is whole in itself takes on the store, for each parameter."""
        return ROUNDED_BYTES_PER_PARAMETER if self.rounding else KEYFRAME_BYTES_PER_PARAMETER

    @property
    def writes_differences(self) -> bool:
        """Whether saves build on a keyframe, whose words each rank then keeps in memory."""
        # Where the log is the increment, a difference saves little and makes restores read twice.
        return self.deltas and (self.gradient_log == "off" or self.rounding)

    def contradictions(self) -> Iterator[str]:
        """What cannot all be meant here, one line each, beginning with the full key to change."""
        if self.every_steps == "auto" and self.gradient_log == "off":
            yield (
                "checkpoint.every_steps (auto) weighs checkpoints against the gradient log: "
                "set checkpoint.gradient_log, or a number of steps"
            )
        if self.gradient_log == "vault" and self.vault_gib == 0:
            yield "checkpoint.gradient_log (vault) has no room where checkpoint.vault_gib is 0: set it to `store`"
