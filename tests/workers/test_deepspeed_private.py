"""DeepSpeed's private names: a version that renames one of them fails here, not at night."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.support.one_rank import build, tiny_config, train, world_of_one

from stormsail.workers import deepspeed_private

pytestmark = pytest.mark.filterwarnings("ignore")  # DeepSpeed's own


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_all_that_is_reached_for_is_there() -> None:
    import deepspeed.comm.comm as deepspeed_comm
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.utils import groups

    assert isinstance(Init.param_id, int)
    assert isinstance(DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0], list)
    assert hasattr(deepspeed_comm, "cdb")
    assert hasattr(DeepSpeedZeroOptimizer_Stage3, "_optimizer_step")
    assert hasattr(DeepSpeedZeroOptimizer_Stage3, deepspeed_private._REDUCE_BUCKET)
    present = {name for name in deepspeed_private._GROUP_NAMES if hasattr(groups, name)}
    assert {"_WORLD_GROUP", "_ZERO_PARAM_INTRA_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP"} <= present


def test_after_leaving_nothing_of_the_group_is_remembered(built_extensions: Path, tmp_path: Path) -> None:
    import deepspeed.comm.comm as deepspeed_comm
    from deepspeed.utils import groups

    with world_of_one(tmp_path, built_extensions):
        build(tiny_config()).destroy()
        assert deepspeed_comm.cdb is not None
    assert deepspeed_comm.cdb is None
    assert not [name for name, value in vars(groups).items() if isinstance(value, dist.ProcessGroup)]


class TestOneEngineAfterAnother:
    @pytest.fixture(autouse=True)
    def _world(self, one_rank: object) -> None:
        """All of these need the world."""

    def test_parameters_are_numbered_alike_in_every_engine(self) -> None:
        numbers = []
        for _ in range(2):
            engine = build(tiny_config())
            numbers.append([parameter.ds_id for parameter in engine.module.parameters()])  # type: ignore[attr-defined] # DeepSpeed's
            engine.destroy()
        assert numbers[0] == numbers[1]
        assert min(numbers[0]) == 0

    def test_states_are_made_without_moving_a_weight_or_a_rate(self) -> None:
        engine = build(tiny_config())
        zero = engine._engine.optimizer
        before = [flat.clone() for flat in zero.fp32_partitioned_groups_flat]
        rates = [group["lr"] for group in zero.optimizer.param_groups]
        states = deepspeed_private.optimizer_states(engine._engine)
        assert all(torch.equal(a, b) for a, b in zip(before, zero.fp32_partitioned_groups_flat, strict=True))
        assert [group["lr"] for group in zero.optimizer.param_groups] == rates
        assert all(float(state["step"]) == 0.0 and not state["exp_avg"].any() for state in states)
        assert all(flat.grad is None for flat in zero.fp32_partitioned_groups_flat)
        engine.destroy()

    def test_states_that_are_there_are_left_as_they_are(self) -> None:
        engine = build(tiny_config())
        train(engine, range(1))
        assert {float(state["step"]) for state in deepspeed_private.optimizer_states(engine._engine)} == {1.0}
        engine.destroy()

    def test_small_parameters_that_are_kept_whole_follow_their_rewritten_shards(self) -> None:
        engine = build(tiny_config())
        kept = engine._engine.optimizer.persistent_parameters
        assert kept
        for parameter in kept:
            parameter.ds_tensor.data.fill_(0.25)
        deepspeed_private.refresh_compute_copies(engine._engine)
        assert all(bool((parameter.data == 0.25).all()) for parameter in kept)
        engine.destroy()
