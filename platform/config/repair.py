"""How trouble is looked into and repaired: the diagnosis, the ladder with its tiers, and the learning rate after it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stormsail.platform.config.section import Count, Fraction, Positive, Section


class DiagnoseSection(Section):
    """The replay of an incident's steps in variants, from which the ladder learns where to begin."""

    enabled: bool = Field(default=False, description="find out the kind of a numeric incident before it is repaired")
    budget_steps: Positive = Field(50, description="steps that one diagnosis may compute in all")


class LadderSection(Section):
    """How the ladder of repairs is climbed."""

    probation_steps: Positive = Field(50, description="healthy steps past a numeric incident that close its episode")
    episodes_per_hour: Positive = Field(6, description="episodes within an hour before the run stops for a person")
    episodes_total: Positive = Field(50, description="episodes in all before the run stops for a person")
    reset_after_steps: Positive = Field(1000, description="healthy steps that reset both budgets")
    on_anomaly: Literal["repair", "stop"] = Field(
        "repair",
        description="an incident of bad numbers: climb the ladder, or `stop` the run for a person (exit code 4); lost "
        "processes are resumed either way",
    )
    shadow: bool = Field(
        default=False, description="decide, journal and alert, but do not act; a lost process is still resumed"
    )


class RollbackSection(Section):
    """Tier 2."""

    min_steps: Count = Field(100, description="a numeric rollback goes at least this far before the onset")
    lr_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.8, description="the learning rate is multiplied by this"
    )


class Fp32Section(Section):
    """Tier 3."""

    window_steps: Positive = Field(100, description="steps before the onset from which FP32 replay starts")
    margin_steps: Count = Field(10, description="steps past the last anomalous one that are still done in FP32")


class LrSection(Section):
    """What becomes of a reduced learning rate."""

    floor: Fraction = Field(0.5, description="lowest factor on the schedule; at the floor tier 2 counts as failed")
    hold_steps: Count = Field(200, description="steps that a factor is held after its episode closed")
    ramp_steps: Positive = Field(1000, description="steps over which the factor returns to 1")
