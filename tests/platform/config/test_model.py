"""The tree is strict: what a section does not know or cannot mean is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from stormsail.platform.config.builtin_args import KINDS, builtins_of
from stormsail.platform.config.checkpoint import CheckpointSection
from stormsail.platform.config.detect import (
    DetectSection,
    OscillationLimits,
    RanksLimits,
    SpikeLimits,
    ThroughputLimits,
)
from stormsail.platform.config.drill import (
    Bf16OverflowFault,
    DrillSection,
    KillFault,
    LrInstabilityFault,
    NonfiniteFault,
    RaiseFault,
)
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.section import Section
from stormsail.platform.config.training import ScheduleSection, TrainSection

FAULTS = (KillFault, LrInstabilityFault, Bf16OverflowFault, NonfiniteFault, RaiseFault)


def run(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "train": {"steps": 100}, **sections})


def every_model() -> Iterator[type[BaseModel]]:
    yield RunConfig
    yield from FAULTS
    for info in RunConfig.model_fields.values():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield info.annotation
    for kind in KINDS:
        yield from builtins_of(kind).values()


@pytest.mark.parametrize("model", list(every_model()), ids=lambda model: model.__name__)
def test_every_key_is_described(model: type[BaseModel]) -> None:
    bare = [
        key
        for key, info in model.model_fields.items()
        if not info.description
        and key != "kind"
        and not (isinstance(info.annotation, type) and issubclass(info.annotation, Section))
    ]
    assert not bare
    assert model.__doc__


def test_a_section_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run().train.steps = 3  # type: ignore[misc]  # that is the point


@pytest.mark.parametrize("name", ["", "Run", "-a", "a b", "a/b", "..", "a" * 64])
def test_names_that_cannot_be_folders_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        RunConfig(name=name, train=TrainSection(steps=100))


def test_all_contradictions_are_told_one_a_line() -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig(
            name="x",
            train=TrainSection(steps=10),
            schedule=ScheduleSection(warmup_steps=10),
            checkpoint=CheckpointSection(every_steps="auto"),
            detect=DetectSection(
                preset="quiet",
                spike=SpikeLimits(needed=4, of=3),
                oscillation=OscillationLimits(swing=0.1, data_period=0),
                ranks=RanksLimits(watch_steps=3, incident_steps=2),
                throughput=ThroughputLimits(collapsed=0.9, recovered=0.8),
            ),
            drill=DrillSection(faults=(KillFault(kind="kill", step=1, rank=2),), twin_step=11),
        )
    lines = str(caught.value.errors()[0]["ctx"]["error"]).splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == [
        "schedule.warmup_steps",
        "checkpoint.every_steps",
        "detect.spike.needed",
        "detect.oscillation.swing",
        "detect.oscillation.data_period",
        "detect.ranks.incident_steps",
        "detect.throughput.collapsed",
        "drill.twin_step",
        "drill.faults.0.rank",
    ]


def test_ranks_that_wait_for_a_hanging_one_outlive_its_evidence() -> None:
    assert run(cluster={"step_timeout_s": 880}).cluster.step_timeout_s == 880.0
    with pytest.raises(ValidationError, match=r"cluster.collective_timeout_s \(900\) must be at least 1020: "):
        run(cluster={"step_timeout_s": 1000})
    with pytest.raises(ValidationError, match=r"hang\.evidence_s"):
        run(cluster={"step_timeout_s": 880}, hang={"evidence_s": 30})
    run(cluster={"step_timeout_s": 3600, "collective_timeout_s": 3620})
