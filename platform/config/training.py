"""What is trained, on what, and how: the sections that the numbers of a run follow from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from stormsail.platform.config.section import Args, Count, Fraction, Positive, Section, list_to_tuple


class ModelSection(Section):
    """What is trained."""

    factory: str = Field("builtin:transformer", description="`builtin:NAME`, or `module:function` of your own code")
    args: Args = Field(default_factory=dict, description="handed to the factory as its `args`")


class DataSection(Section):
    """What it is trained on."""

    factory: str = Field("builtin:python-stdlib", description="`builtin:NAME`, or `module:function` of your own code")
    args: Args = Field(default_factory=dict, description="handed to the factory as its `args`")
    sequence_tokens: Positive = Field(128, description="tokens per sample")


class OptimizerSection(Section):
    """How the weights move. The learning rate's course over time is in `schedule`."""

    factory: str = Field("builtin:adamw", description="`builtin:NAME`, or `module:function` of your own code")
    args: Args = Field(default_factory=dict, description="handed to the factory as its `args`")
    lr: Annotated[float, Field(gt=0.0)] = Field(1e-3, description="peak learning rate")
    betas: Annotated[tuple[Fraction, Fraction], BeforeValidator(list_to_tuple)] = Field(
        (0.9, 0.95), description="AdamW's exponential decay rates of the two moments"
    )
    eps: Annotated[float, Field(gt=0.0)] = Field(
        1e-8, description="added to the root of the second moment; larger values slow layers with small gradients"
    )
    weight_decay: Annotated[float, Field(ge=0.0)] = Field(0.1, description="decoupled; matrices only")


class ScheduleSection(Section):
    """Learning-rate schedule: linear warm-up, then cosine to `min_ratio` of the peak at `train.steps`."""

    warmup_steps: Count = Field(20, description="steps of linear warm-up")
    min_ratio: Fraction = Field(0.1, description="last learning rate as a share of the peak")


class TrainSection(Section):
    """The step loop."""

    steps: Positive = Field(description="global batches to consume")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="compute precision; masters and moments are fp32")
    global_batch: Positive = Field(16, description="samples per step over all workers; constant at any worker count")
    micro_batch: Positive = Field(8, description="samples per forward pass of one worker")
    deterministic: bool = Field(default=True, description="refuse operations whose result depends on timing")
    threads: Positive = Field(1, description="CPU threads of one worker; part of what makes bits repeat")
    clip_norm: Annotated[float, Field(gt=0.0)] | None = Field(
        1.0, description="global gradient norm limit; null is off"
    )
    log_every: Positive = Field(10, description="steps between two printed lines")
