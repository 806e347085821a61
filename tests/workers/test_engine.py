"""A real ZeRO-3 engine: its state comes out and goes back bit for bit, into either precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from tests.support.one_rank import backward, build, digest_of, random_batch, tiny_config, train

from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import ConfigError, StateMismatchError
from stormsail.workers.engine import MASTER, ZeroEngine, _word_sum

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]  # DeepSpeed's own


class Workshop:
    """Builds one engine after another; only one is there at a time."""

    engine: ZeroEngine | None = None

    def build(self, precision: str = "bf16", **changes: Any) -> ZeroEngine:
        self.close()
        self.engine = build(tiny_config(**changes), precision)
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()
            self.engine = None


@pytest.fixture
def workshop() -> Iterator[Workshop]:
    made = Workshop()
    yield made
    made.close()


@pytest.fixture
def engine(workshop: Workshop) -> ZeroEngine:
    return workshop.build()


def test_the_same_seed_builds_the_same_weights(workshop: Workshop) -> None:
    first, again, other = (digest_of(workshop.build(seed=seed).copy_state()) for seed in (1, 1, 2))
    assert first == again != other


def test_a_state_that_is_written_back_trains_on_with_the_same_losses_to_the_last_bit(engine: ZeroEngine) -> None:
    train(engine, range(3))
    state, scalars = engine.copy_state(), engine.optimizer_scalars()
    once = train(engine, range(3, 6))
    end = digest_of(engine.copy_state())
    engine.write_state(state, scalars)
    assert digest_of(engine.copy_state()) == digest_of(state)
    assert train(engine, range(3, 6)) == once
    assert digest_of(engine.copy_state()) == end


def test_a_copy_does_not_change_with_the_engine(engine: ZeroEngine) -> None:
    state = engine.copy_state()
    before = digest_of(state)
    train(engine, range(2))
    assert digest_of(state) == before
    assert digest_of(engine.copy_state()) != before


def test_an_fp32_engine_takes_the_same_state_and_gives_it_back_unchanged(workshop: Workshop) -> None:
    engine = workshop.build()
    train(engine, range(3))
    state, scalars = engine.copy_state(), engine.optimizer_scalars()
    after = train(engine, range(3, 5))
    wide = workshop.build("fp32")
    wide.write_state(state, scalars)
    assert wide.compute_dtype is torch.float32
    assert digest_of(wide.copy_state()) == digest_of(state)
    assert wide.optimizer_scalars() == scalars
    assert train(wide, range(3, 5)) == pytest.approx(after, rel=0.02)


def test_the_engine_computes_in_the_precision_that_was_asked_for(engine: ZeroEngine) -> None:
    assert engine.compute_dtype is torch.bfloat16


def test_a_dropped_gradient_leaves_no_trace(workshop: Workshop) -> None:
    engine = workshop.build()
    train(engine, range(2))
    before = digest_of(engine.copy_state()), engine.optimizer_scalars()
    backward(engine, 99)
    engine.drop()
    assert (digest_of(engine.copy_state()), engine.optimizer_scalars()) == before
    disturbed = train(engine, range(2, 4))
    assert train(workshop.build(), range(4))[2:] == disturbed


def test_updates_are_counted_by_the_optimizer(engine: ZeroEngine) -> None:
    assert set(engine.optimizer_scalars()["step"]) == {0.0}
    train(engine, range(3))
    assert set(engine.optimizer_scalars()["step"]) == {3.0}


def test_reading_the_state_of_a_fresh_engine_moves_no_weight(engine: ZeroEngine) -> None:
    masters = [shard for shard in engine.copy_state() if shard.spec.component == MASTER]
    moments = [shard for shard in engine.copy_state() if shard.spec.component != MASTER]
    engine.optimizer_scalars()
    assert digest_of(masters) == digest_of([s for s in engine.copy_state() if s.spec.component == MASTER])
    assert all(not shard.values.any() for shard in moments)


def test_the_state_is_named_by_parameter_and_component(engine: ZeroEngine) -> None:
    specs = engine.state_specs()
    assert [shard.spec for shard in engine.copy_state()] == specs
    assert {spec.component for spec in specs} == {"master", "exp_avg", "exp_avg_sq"}
    assert sum(spec.count for spec in specs if spec.component == MASTER) == sum(
        torch.Size(piece.shape).numel() for piece in engine.pieces
    )


def test_a_state_of_another_model_is_refused_and_changes_nothing(engine: ZeroEngine) -> None:
    before = digest_of(engine.copy_state())
    state = engine.copy_state()
    spec = state[0].spec
    state[0] = Shard(ShardSpec("elsewhere", spec.component, spec.shape, spec.start, spec.count), state[0].values)
    with pytest.raises(StateMismatchError, match="does not fit this model"):
        engine.write_state(state, engine.optimizer_scalars())
    assert digest_of(engine.copy_state()) == before


def test_gradients_are_seen_scaled_and_spoilt_where_they_lie(engine: ZeroEngine) -> None:
    backward(engine, 0)
    before = {name: gradient.clone() for name, gradient in engine.local_gradients()}
    assert all(gradient.dtype is torch.float32 for gradient in before.values())
    engine.scale_gradients(0.5)
    for name, gradient in engine.local_gradients():
        torch.testing.assert_close(gradient, before[name] * 0.5, rtol=0.0, atol=0.0)
    engine.spoil_gradient(float("inf"))
    assert sum(int((~torch.isfinite(gradient)).sum()) for _, gradient in engine.local_gradients()) == 1
    engine.drop()


@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_what_this_rank_computes_is_told_apart_from_what_became_of_it(
    engine: ZeroEngine, where: Literal["gradient", "loss"]
) -> None:
    handle = engine.spoil_backward(where)
    loss = backward(engine, 0)
    handle.remove()
    assert math.isnan(loss) == (where == "loss")
    bad = sum(int((~torch.isfinite(gradient)).sum()) for _, gradient in engine.local_gradients())
    assert bad == 1 if where == "gradient" else bad > 1
    assert not engine.own_gradients_finite()
    engine.drop()
    backward(engine, 0)
    engine.spoil_gradient(float("inf"))
    assert engine.own_gradients_finite()
    assert engine.looked_s() > 0.0
    engine.drop()


def test_loss_scale_and_overflow_are_those_of_deepspeed(engine: ZeroEngine) -> None:
    assert (engine.loss_scale, engine.overflowed) == (1.0, False)
    backward(engine, 0)
    engine.spoil_gradient(float("inf"))
    assert not engine.apply()
    assert engine.overflowed
    engine._engine.optimizer.loss_scale = 512.0
    assert engine.loss_scale == 512.0
    engine._engine.optimizer.loss_scale = 1.0
    backward(engine, 0)
    assert engine.apply()
    assert not engine.overflowed


def test_micro_batches_add_up(engine: ZeroEngine) -> None:
    batch = random_batch(0)
    half = [(part[:2], part[2:]) for part in batch]
    engine.forward_backward(batch, 1.0, last=True)
    whole = {name: gradient.clone() for name, gradient in engine.local_gradients()}
    engine.drop()
    for index in (0, 1):
        tokens, targets, mask = (part[index] for part in half)
        engine.forward_backward((tokens, targets, mask), 1.0, last=index == 1)
    for name, gradient in engine.local_gradients():
        torch.testing.assert_close(gradient, whole[name], rtol=0.05, atol=0.05)
    engine.drop()


def test_the_learning_rate_is_read_back_from_the_optimizer(engine: ZeroEngine) -> None:
    assert engine.set_learning_rate(3e-4) == pytest.approx(3e-4)
    assert {group["lr"] for group in engine._inner.param_groups} == {3e-4}


def test_groups_keep_the_ratio_of_their_rates(workshop: Workshop) -> None:
    engine = workshop.build(optimizer={"factory": "tests.support.user_factories:two_rates", "lr": 1e-3})
    assert engine.set_learning_rate(2e-3) == pytest.approx(2e-3)
    assert sorted(group["lr"] for group in engine._inner.param_groups) == pytest.approx([2e-4, 2e-3])


def test_a_learning_rate_of_zero_moves_nothing(engine: ZeroEngine) -> None:
    before = digest_of([shard for shard in engine.copy_state() if shard.spec.component == MASTER])
    backward(engine, 0)
    engine.set_learning_rate(0.0)
    assert engine.apply()
    assert digest_of([shard for shard in engine.copy_state() if shard.spec.component == MASTER]) == before


def test_an_optimizer_with_quantised_state_is_refused_at_its_first_step(workshop: Workshop) -> None:
    """Case 13: it trains, but its state could not be cut over another number of workers."""
    engine = workshop.build(optimizer={"factory": "tests.support.user_factories:quantised"})
    with pytest.raises(ConfigError, match="'state1' is uint8, not float32") as caught:
        train(engine, range(1))
    assert caught.value.where == "optimizer.factory"


def test_the_word_sum_is_the_same_wherever_a_shard_begins_and_shows_a_changed_bit() -> None:
    whole = torch.arange(1, 103, dtype=torch.float32)
    for size in (0, 1, 2, 99, 100):
        aligned, odd = whole[2 : 2 + size].clone(), torch.cat([whole[:1], whole[2 : 2 + size]])[1:]
        assert odd.storage_offset() == 1
        assert int(_word_sum(aligned)) == int(_word_sum(odd))
        if size:
            aligned[size // 2] += 1.0
            assert int(_word_sum(aligned)) != int(_word_sum(odd))


def test_mu_parametrisations_groups_keep_their_own_rates(workshop: Workshop) -> None:
    model = {"args": {"vocab_size": 32, "d_model": 16, "layers": 1, "heads": 2, "mup_base_width": 8}}
    engine = workshop.build("fp32", model=model, optimizer={"lr": 1e-2, "args": {"hidden_lr_scale": 0.5}})
    assert engine.set_learning_rate(3e-3) == pytest.approx(3e-3)
    rates = sorted(group["lr"] for group in engine._inner.param_groups)
    assert rates == pytest.approx([1.5e-3, 3e-3, 3e-3])
    train(engine, range(2))
