"""A plan is arithmetic: batches, memory, checkpoints, and what could not be known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import micro_steps
from stormsail.platform.plan import RunPlan, batch_plan, ladder_in_words, plan_run
from stormsail.platform.plan_text import plan_text


def run(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "train": {"steps": 1000}, **sections})


def planned(config: RunConfig, *, bandwidth_mb_s: float = 100.0, parameters: int | None = None) -> RunPlan:
    return plan_run(config, bandwidth_mb_s=bandwidth_mb_s, parameters=parameters)


def test_a_batch_that_divides_has_no_padding() -> None:
    batch = batch_plan(run(train={"steps": 1000, "global_batch": 64, "micro_batch": 8}, cluster={"workers": 4}))
    assert (batch.micro_steps, batch.padded_samples, batch.padded_share) == (2, 0, 0.0)
    assert (batch.tokens_per_step, batch.tokens_total) == (64 * 128, 64 * 128 * 1000)


def test_a_batch_that_does_not_divide_is_padded_and_said() -> None:
    config = run(train={"steps": 1000, "global_batch": 50, "micro_batch": 8}, cluster={"workers": 3})
    assert batch_plan(config).micro_steps == 3
    assert batch_plan(config).padded_samples == 22
    (note,) = planned(config).notes
    assert note.startswith("22 of 72 sample places in a step are padding (31% of the compute)")


@given(st.integers(1, 3000), st.integers(1, 70), st.integers(1, 40))
def test_an_evaluation_takes_as_many_passes_as_the_workers_run(samples: int, micro: int, workers: int) -> None:
    train = {"steps": 1000, "micro_batch": micro}
    plan = planned(run(train=train, cluster={"workers": workers}, eval={"every_steps": 100, "samples": samples}))
    assert plan.evaluation is not None
    assert (plan.evaluation.count, plan.evaluation.micro_steps) == (10, micro_steps(samples, workers, micro))


def test_the_best_checkpoint_needs_room_and_so_does_what_it_builds_on() -> None:
    section = {"every_steps": 100}
    kept = []
    for changes in ({}, {"keep_best": True}, {"keep_best": True, "deltas": False}):
        checkpoint = planned(run(eval=section, checkpoint=changes)).checkpoint
        assert checkpoint is not None
        kept.append(checkpoint.kept_bytes / checkpoint.stored_bytes)
    assert kept == [6.0, 8.0, 7.0]


@given(st.integers(1, 5000), st.integers(1, 70), st.integers(1, 40))
def test_workers_run_equally_many_micro_batches_that_hold_all_samples(batch: int, micro: int, workers: int) -> None:
    config = run(train={"steps": 1000, "global_batch": batch, "micro_batch": micro}, cluster={"workers": workers})
    plan = batch_plan(config)
    assert plan.micro_steps * micro * workers == batch + plan.padded_samples
    assert 0 <= plan.padded_samples < micro * workers
    assert 0 <= plan.padded_share < 1


def test_memory_is_that_of_a_zero_3_rank() -> None:
    memory = planned(run(model={"factory": "m:f"}, cluster={"workers": 8}), parameters=8_000_000_000).memory
    assert memory is not None
    # bf16 weights and gradients, fp32 sum of gradients, master and two moments: 20 bytes.
    assert memory.shards == 20 * 1_000_000_000
    assert memory.working == 2 * (1_000_000_000 + 500_000_000)
    assert memory.activations is None
    assert memory.total == memory.shards + memory.working


@pytest.mark.parametrize(
    ("section", "slots", "keyframe"),
    [
        ({}, 3, 8),
        ({"ring": 5, "deltas": False}, 5, 0),
        ({"gradient_log": "store"}, 3, 0),
        ({"gradient_log": "store", "rounding": True}, 3, 8),
        ({"vault_gib": 0}, 2, 8),
        ({"vault_gib": 0, "ring": 1}, 1, 8),
    ],
    ids=[
        "default",
        "all in full",
        "the log is the increment",
        "small differences beside a log",
        "no vault",
        "a single slot",
    ],
)
def test_saves_take_host_memory_for_each_slot_and_the_last_keyframe(
    section: dict[str, object], slots: int, keyframe: int
) -> None:
    config = run(model={"factory": "m:f"}, cluster={"workers": 8}, checkpoint=section)
    memory = planned(config, parameters=8_000_000_000).memory
    assert memory is not None
    assert memory.slots == slots
    assert memory.host_slots == slots * 12 * 1_000_000_000
    assert memory.host_keyframe == keyframe * 1_000_000_000


def test_a_small_model_gathers_no_more_than_it_has() -> None:
    memory = planned(run(model={"factory": "m:f"}), parameters=1000).memory
    assert memory is not None
    assert memory.working == 2 * (1000 + 1000)


def test_fp32_needs_more_room() -> None:
    bf16, fp32 = planned(run()).memory, planned(run(train={"steps": 1000, "precision": "fp32"})).memory
    assert bf16 is not None
    assert fp32 is not None
    assert bf16.total < bf16.total_fp32 == fp32.total == fp32.total_fp32


def test_activations_grow_with_the_micro_batch() -> None:
    one, two = (planned(run(train={"steps": 1000, "micro_batch": size})).memory for size in (1, 2))
    assert one is not None
    assert two is not None
    assert one.activations is not None
    assert two.activations == 2 * one.activations


def test_a_checkpoint_has_twelve_bytes_a_parameter_and_takes_its_time() -> None:
    config = run(model={"factory": "m:f"}, checkpoint={"every_steps": 30, "keep_last": 2})
    checkpoint = planned(config, parameters=1_000_000_000, bandwidth_mb_s=99.0).checkpoint
    assert checkpoint is not None
    assert checkpoint.raw_bytes == 12_000_000_000
    assert checkpoint.stored_bytes == 9_900_000_000
    assert checkpoint.upload_s == pytest.approx(100.0)
    assert checkpoint.kept_bytes == 5 * 9_900_000_000
    assert checkpoint.saves == 34


def test_rounding_halves_what_is_stored() -> None:
    config = run(model={"factory": "m:f"}, checkpoint={"rounding": True})
    checkpoint = planned(config, parameters=1_000_000_000).checkpoint
    assert checkpoint is not None
    assert checkpoint.stored_bytes == 4_950_000_000


def test_a_gradient_log_costs_its_bytes_in_every_step_and_saves_the_steps() -> None:
    config = run(model={"factory": "m:f"}, checkpoint={"every_steps": 100, "gradient_log": "store"})
    checkpoint = planned(config, parameters=1_000_000_000).checkpoint
    assert checkpoint is not None
    assert (checkpoint.log_bytes, checkpoint.log_kept_bytes) == (1_350_000_000, 405_000_000_000)
    assert "those before are taken from the gradient log, up to 100 of them" in "\n".join(ladder_in_words(config))
    assert "1.4 GB a step" in plan_text(planned(config, parameters=1_000_000_000))


def test_auto_takes_the_distance_that_moves_the_fewest_bytes() -> None:
    section = {"every_steps": "auto", "gradient_log": "store", "steps_per_failure": 1000}
    checkpoint = planned(run(model={"factory": "m:f"}, checkpoint=section), parameters=1000).checkpoint
    assert checkpoint is not None
    assert checkpoint.saves == -(-1000 // 121)


def test_the_built_in_model_knows_its_parameters_whatever_is_said() -> None:
    assert planned(run(), parameters=5).parameters == planned(run()).parameters == 3_213_568


def test_what_only_user_code_knows_is_listed_and_not_guessed() -> None:
    plan = planned(run(model={"factory": "m:f"}, data={"factory": "m:d"}))
    assert (plan.parameters, plan.memory, plan.checkpoint) == (None, None, None)
    text = "\n".join(plan.unchecked)
    assert "model.factory m:f" in text
    assert "data.factory m:d" in text
    assert "--params" in text


def test_what_nobody_asked_is_always_listed() -> None:
    text = "\n".join(planned(run(storage="s3://bucket/x")).unchecked)
    assert "storage s3://bucket/x: not contacted; 100 MB/s is assumed" in text
    assert "device memory" in text
    assert "data: neither read nor counted" in text


def test_the_ladder_is_told_with_its_limits() -> None:
    text = "\n".join(ladder_in_words(run()))
    assert "goes back at least 100 steps" in text
    assert "learning rate by 0.8, at most 3 times before the floor of 0.5" in text
    assert "after 6 episodes in an hour, or 50 in all" in text


def test_a_ladder_without_a_floor_has_no_limit() -> None:
    assert "any number of times" in "\n".join(ladder_in_words(run(lr={"floor": 0.0})))


@pytest.mark.parametrize(("floor", "factor", "cuts"), [(0.25, 0.5, 2), (0.64, 0.8, 2), (1.0, 0.8, 0), (0.9, 0.8, 0)])
def test_cuts_to_the_floor_are_counted_exactly(floor: float, factor: float, cuts: int) -> None:
    words = "\n".join(ladder_in_words(run(lr={"floor": floor}, rollback={"lr_factor": factor})))
    assert f"at most {cuts} times" in words


def test_an_upload_above_its_deadline_is_noted() -> None:
    plan = planned(run(model={"factory": "m:f"}), parameters=10**10, bandwidth_mb_s=1.0)
    assert any("above checkpoint.deadline_s (300)" in note for note in plan.notes)


def test_a_run_too_short_for_tier_2_is_noted() -> None:
    assert any("rollback.min_steps (100)" in note for note in planned(run(train={"steps": 100})).notes)


def test_drill_faults_that_never_fire_are_noted() -> None:
    config = run(drill={"faults": [{"kind": "kill", "step": 5}, {"kind": "kill", "step": 1000}]})
    assert planned(config).notes == ("Drill faults at step 1000 never fire: the run has 1000.",)


def test_a_run_that_is_to_stop_at_anomalies_is_promised_no_tiers() -> None:
    words = "\n".join(ladder_in_words(run(ladder={"on_anomaly": "stop"})))
    assert "An incident of bad numbers stops the run for a person" in words
    assert "A lost process or node costs up to" in words
    assert "Tier" not in words
