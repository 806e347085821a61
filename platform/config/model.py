"""The configuration of one run, whole: the sections in one frozen tree, and what in it cannot all be meant.

Nothing here does I/O. `load.py` reads files, environment and `--set`; after start-up nobody reads the
environment again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.config.checkpoint import CheckpointSection
from stormsail.platform.config.detect import DetectSection, NonfiniteSection
from stormsail.platform.config.drill import DrillSection
from stormsail.platform.config.evaluation import EvalSection
from stormsail.platform.config.hang import HangSection
from stormsail.platform.config.infrastructure import ClusterSection, JournalSection, StorageSection, TrackingSection
from stormsail.platform.config.repair import (
    DiagnoseSection,
    Fp32Section,
    LadderSection,
    LrSection,
    RollbackSection,
)
from stormsail.platform.config.section import Count, Section
from stormsail.platform.config.training import (
    DataSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
    TrainSection,
)

# A decision waits for saves that are being published, then for the store.
DECISION_MARGIN_S = 60.0


class RunConfig(Section):
    """One run, whole."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = Field(
        description="names the run and its folder in the store: lower-case letters, digits, `.`, `_`, `-`"
    )
    seed: Count = Field(1, description="initial weights, data order and dropout follow from it")
    train: TrainSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    cluster: ClusterSection = ClusterSection()
    storage: StorageSection = StorageSection()
    checkpoint: CheckpointSection = CheckpointSection()
    eval: EvalSection = EvalSection()
    detect: DetectSection = DetectSection()
    nonfinite: NonfiniteSection = NonfiniteSection()
    hang: HangSection = HangSection()
    diagnose: DiagnoseSection = DiagnoseSection()
    ladder: LadderSection = LadderSection()
    rollback: RollbackSection = RollbackSection()
    fp32: Fp32Section = Fp32Section()
    lr: LrSection = LrSection()
    journal: JournalSection = JournalSection()
    alerts: AlertsSection = AlertsSection()
    tracking: TrackingSection = TrackingSection()
    drill: DrillSection = DrillSection()

    def unevaluated(self) -> RunConfig:
        """The same run, but that it is never evaluated: it keeps every bit of its state."""
        checkpoint = self.checkpoint.model_copy(update={"keep_best": False})
        return self.model_copy(update={"eval": EvalSection(), "checkpoint": checkpoint})

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        found = list(self._contradictions())
        if found:
            raise ValueError("\n".join(found))
        return self

    def _contradictions(self) -> Iterator[str]:
        """What cannot all be meant, one line each, beginning with the key to change."""
        steps = self.train.steps
        if self.schedule.warmup_steps >= steps:
            said = "" if "warmup_steps" in self.schedule.model_fields_set else ", the default,"
            yield f"schedule.warmup_steps ({self.schedule.warmup_steps}){said} must be below train.steps ({steps})"
        yield from self.checkpoint.contradictions()
        yield from self.detect.contradictions()
        if self.drill.twin_step is not None and self.drill.twin_step > steps:
            yield f"drill.twin_step ({self.drill.twin_step}) must be at most train.steps ({steps})"
        yield from self.eval.contradictions(self.data, self.checkpoint)
        yield from self._impatience()
        for index, fault in enumerate(self.drill.faults):
            rank = getattr(fault, "rank", 0)
            if rank >= self.cluster.workers:
                workers = self.cluster.workers
                yield f"drill.faults.{index}.rank ({rank}) does not exist with cluster.workers ({workers})"

    def _impatience(self) -> Iterator[str]:
        """Ranks that wait for another one in a collective must outlive whatever it may be busy with."""
        decision_s = self.journal.deadline_s + DECISION_MARGIN_S
        if self.cluster.collective_timeout_s < decision_s:
            yield (
                f"cluster.collective_timeout_s ({self.cluster.collective_timeout_s:g}) must be at least {decision_s:g}: "
                f"journal.deadline_s and {DECISION_MARGIN_S:g} s more, while all ranks wait for a decision"
            )
        limits_s = {"cluster.step_timeout_s": self.cluster.step_timeout_s}
        if self.eval.every_steps is not None:
            limits_s["eval.timeout_s"] = self.eval.timeout_s
        for key, limit_s in limits_s.items():
            hang_s = limit_s + self.hang.evidence_s
            if self.cluster.collective_timeout_s < hang_s:
                yield (
                    f"cluster.collective_timeout_s ({self.cluster.collective_timeout_s:g}) must be at least {hang_s:g}: "
                    f"{key} and hang.evidence_s, or else the ranks that wait for a hanging one die before "
                    "their stacks are gathered"
                )
