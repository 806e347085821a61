"""Each key belongs to one class: free, inexact, or another experiment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.config.change import ChangeClass, ConfigChange, KeyChange, classify, compare_configs
from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.section import Section


def run(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "train": {"steps": 100}, **sections})


ALLOWED = [
    "train.steps",
    "train.log_every",
    "tracking.uri",
    "ladder.episodes_total",
    "rollback.min_steps",
    "fp32.window_steps",
    "lr.floor",
    "journal.deadline_s",
    "detect.spike.z",
    "eval.every_steps",
    "nonfinite.patience",
    "checkpoint.every_steps",
    "checkpoint.keep_last",
    "cluster.wait_s",
    "cluster.step_timeout_s",
    "cluster.address",
    "storage.endpoint",
    "storage.profile",
    "drill.faults",
]
INEXACT = ["cluster.workers", "cluster.accelerator", "train.threads", "train.micro_batch", "train.deterministic"]
REFUSED = [
    "name",
    "seed",
    "model.factory",
    "model.args.layers",
    "data.sequence_tokens",
    "optimizer.lr",
    "schedule.warmup_steps",
    "train.global_batch",
    "train.precision",
    "train.clip_norm",
    "checkpoint.gradient_log",
    "checkpoint.rounding",
    "train",
    "a_key_of_tomorrow",
]


@pytest.mark.parametrize("key", ALLOWED)
def test_limits_and_places_may_change(key: str) -> None:
    assert classify(key) is ChangeClass.ALLOWED


@pytest.mark.parametrize("key", INEXACT)
def test_what_changes_only_the_rounding_is_inexact(key: str) -> None:
    assert classify(key) is ChangeClass.INEXACT


@pytest.mark.parametrize("key", REFUSED)
def test_what_makes_another_experiment_is_refused(key: str) -> None:
    assert classify(key) is ChangeClass.REFUSED


def test_every_key_of_train_has_a_rule_of_its_own() -> None:
    from stormsail.platform.config.change import _RULES
    from stormsail.platform.config.training import TrainSection

    assert {f"train.{key}" for key in TrainSection.model_fields} <= _RULES.keys()


def test_every_section_has_a_rule() -> None:
    from stormsail.platform.config.change import _RULES

    sections = {
        name
        for name, info in RunConfig.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
    }
    assert sections - {"train"} <= _RULES.keys()


def test_nothing_differs_from_itself() -> None:
    assert compare_configs(run(), run()) == ConfigChange()
    assert compare_configs(run(), run()).empty


def test_a_default_written_out_is_no_change() -> None:
    assert compare_configs(run(), run(model={"args": {"layers": 4}})).empty


def test_changes_are_listed_by_class_with_old_and_new() -> None:
    change = compare_configs(
        run(),
        run(train={"steps": 200}, seed=2, cluster={"workers": 4}, model={"args": {"layers": 2}}, lr={"floor": 0.25}),
    )
    assert change.allowed == (KeyChange("lr.floor", 0.5, 0.25), KeyChange("train.steps", 100, 200))
    assert change.inexact == (KeyChange("cluster.workers", 2, 4),)
    assert change.refused == (KeyChange("model.args.layers", 4, 2), KeyChange("seed", 1, 2))
    assert not change.empty
    assert str(change.refused[1]) == "seed: 1 -> 2"


def test_args_that_come_go_or_change_their_type_are_changes() -> None:
    old = run(model={"factory": "m:f", "args": {"a": 1, "b": None, "d": {}}})
    new = run(model={"factory": "m:f", "args": {"a": True, "c": None, "d": {"e": 1}}})
    keys = {change.key for change in compare_configs(old, new).refused}
    assert keys == {"model.args.a", "model.args.b", "model.args.c", "model.args.d", "model.args.d.e"}


SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
ARGS = st.dictionaries(st.sampled_from(["a", "b", "c"]), SCALARS, max_size=3)


@given(old=ARGS, new=ARGS)
def test_comparing_the_other_way_round_swaps_old_and_new(old: dict[str, object], new: dict[str, object]) -> None:
    first, second = (run(model={"factory": "m:f", "args": args}) for args in (old, new))
    there = compare_configs(first, second).refused
    back = compare_configs(second, first).refused
    assert [KeyChange(change.key, change.new, change.old) for change in back] == list(there)


def test_with_rounding_the_checkpoint_steps_are_part_of_the_arithmetic() -> None:
    def with_(every_steps: int, *, rounding: bool) -> RunConfig:
        return run(checkpoint={"every_steps": every_steps, "rounding": rounding})

    assert compare_configs(with_(10, rounding=False), with_(20, rounding=False)).refused == ()
    (refused,) = compare_configs(with_(10, rounding=True), with_(20, rounding=True)).refused
    assert refused.key == "checkpoint.every_steps"


def test_the_gradient_log_may_move_but_not_begin_or_end() -> None:
    def with_(where: str) -> RunConfig:
        return run(checkpoint={"gradient_log": where})

    assert [item.key for item in compare_configs(with_("vault"), with_("store")).allowed] == ["checkpoint.gradient_log"]
    for old, new in (("off", "store"), ("vault", "off")):
        assert [item.key for item in compare_configs(with_(old), with_(new)).refused] == ["checkpoint.gradient_log"]
