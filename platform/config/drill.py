"""Faults to inject on purpose: each kind with what it takes, and the proof that is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from stormsail.platform.config.section import Count, Positive, Section, list_to_tuple

FaultStep = Annotated[Count, Field(description="global step at which it begins")]
FaultSteps = Annotated[Positive, Field(description="steps that it lasts")]
FaultRank = Annotated[Count, Field(description="the rank that it hits")]
FaultTimes = Annotated[Positive | None, Field(description="fire only this many times; null: always")]


class KillFault(Section):
    """SIGKILL one rank, once: at the start of a step, in the evaluation of its state, or while that is being saved."""

    kind: Literal["kill"]
    step: FaultStep
    rank: FaultRank = 0
    during: Literal["step", "evaluate", "save"] = Field(
        "step",
        description="`evaluate`: when the evaluation of the state after `step` steps has begun; `save`: after this rank wrote its "
        "part of the checkpoint of `step`, before it is committed",
    )


class LrInstabilityFault(Section):
    """Multiply the applied learning rate by `scale`, but only while the ladder's LR factor is 1."""

    kind: Literal["lr_instability"]
    step: FaultStep
    steps: FaultSteps = 8
    scale: Annotated[float, Field(gt=1.0)] = Field(30.0, description="multiplies the applied learning rate")


class Bf16OverflowFault(Section):
    """Make one rank's gradient overflow, but only while the engine does not compute in FP32."""

    kind: Literal["bf16_overflow"]
    step: FaultStep
    steps: FaultSteps = 3
    rank: FaultRank = 0


class NonfiniteFault(Section):
    """Make one rank's numbers non-finite at each step of a window, always or the first `times` times."""

    kind: Literal["nonfinite"]
    step: FaultStep
    steps: FaultSteps = 1
    rank: FaultRank = 0
    where: Literal["shard", "gradient", "loss"] = Field(
        "shard",
        description="`shard`: the rank's part of the gradient that all ranks have summed up; `gradient`: one element of "
        "the gradient that it computed itself, before ranks sum up; `loss`: its loss, hence all that follows from it",
    )
    times: FaultTimes = None


class RaiseFault(Section):
    """Raise an exception in one rank's step, as user code would, always or the first `times` times."""

    kind: Literal["raise"]
    step: FaultStep
    rank: FaultRank = 0
    times: FaultTimes = None


Fault = Annotated[
    KillFault | LrInstabilityFault | Bf16OverflowFault | NonfiniteFault | RaiseFault, Field(discriminator="kind")
]


class DrillSection(Section):
    """Faults to inject on purpose, and the proof that is asked for."""

    faults: Annotated[tuple[Fault, ...], BeforeValidator(list_to_tuple)] = Field((), description="what to break, when")
    twin_step: Count | None = Field(
        None, description="also run an undisturbed twin up to this step and compare the state bit for bit"
    )
