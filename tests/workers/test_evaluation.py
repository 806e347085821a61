"""The loss on held-out samples: always the same ones, by all ranks alike, and without a trace."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.one_rank import CPU, SEQUENCE, VOCAB, build, digest_of, tiny_config, train
from tests.support.user_factories import Numbers

from stormsail.platform.errors import ConfigError
from stormsail.platform.messages import World
from stormsail.workers.batches import collate
from stormsail.workers.evaluation import Evaluator, eval_set, evaluated_ids, mean_loss

WORLD = World(1, 0, 1, "127.0.0.1", 1)


@given(st.integers(1, 10_000), st.none() | st.integers(1, 500))
def test_the_samples_are_different_ones_spread_over_all_that_are_held_out(held_out: int, wanted: int | None) -> None:
    ids = evaluated_ids(held_out, wanted)
    assert len(ids) == (held_out if wanted is None else min(held_out, wanted))
    gaps = np.diff([*ids, held_out])
    assert ids[0] == 0
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


def test_what_is_evaluated_has_another_name_when_the_samples_or_the_choice_of_them_change() -> None:
    ids = evaluated_ids(100, 10)
    named = {
        eval_set(*of) for of in (("d", ids), ("e", ids), ("d", evaluated_ids(100, 11)), ("d", evaluated_ids(99, 10)))
    }
    assert len(named) == 4
    assert eval_set("d", evaluated_ids(100, 10)) == eval_set("d", ids)


def test_the_mean_is_over_tokens_whichever_rank_had_them() -> None:
    assert mean_loss([6.0, 1.0], [2, 1]) == 7.0 / 3
    assert mean_loss([6.0, 0.0], [2, 0]) == 3.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_no_loss_and_neither_is_what_has_no_token(bad: float) -> None:
    assert mean_loss([1.0, bad], [2, 2]) is None
    assert mean_loss([0.0], [0]) is None


class _Gappy(Numbers):
    """Every sample leaves another number of tokens out."""

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens, targets, mask = super().sample(index)
        return tokens, targets, np.where(np.arange(SEQUENCE) <= index % SEQUENCE, mask, 0).astype(np.float32)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own
def test_padding_weighs_nothing_and_nothing_of_it_is_left_in_the_engine() -> None:
    source, config = _Gappy(5), tiny_config(eval={"every_steps": 1})
    engine = build(config)
    evaluator = Evaluator(config, source, WORLD, device=CPU)
    evaluator.evaluate(engine)  # also before the first step, which nothing has been traced for yet
    train(engine, range(3))
    before = digest_of(engine.copy_state())
    found = evaluator.evaluate(engine)
    one_by_one = [engine.losses(collate(source, np.array([index]), SEQUENCE)) for index in range(5)]
    assert (found.samples, found.tokens) == (5, 1 + 2 + 3 + 4 + 5)
    assert found.loss == pytest.approx(float(torch.cat(one_by_one).double().sum()) / 15, rel=1e-3)
    assert evaluator.evaluate(engine).loss == found.loss
    spoilt = engine.module.register_forward_hook(lambda _module, args, losses: losses / args[2].any(-1, keepdim=True))
    assert evaluator.evaluate(engine).loss == found.loss  # 0 / 0 where there is no sample
    spoilt.remove()
    assert digest_of(engine.copy_state()) == before
    ahead = train(engine, range(3, 5))
    engine.destroy()
    undisturbed = build(config)
    train(undisturbed, range(3))
    assert train(undisturbed, range(3, 5)) == ahead
    undisturbed.destroy()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own
def test_statistics_that_no_checkpoint_holds_are_told_and_make_no_best_one() -> None:
    own = {"model": {"factory": "tests.support.user_factories:counting_model", "args": {"vocab_size": VOCAB}}}
    config = tiny_config(**own, eval={"every_steps": 5})
    keeping = tiny_config(**own, eval={"every_steps": 5}, checkpoint={"every_steps": 5, "keep_best": True})
    engine = build(config)
    evaluators = [Evaluator(of, Numbers(5), WORLD, device=CPU) for of in (config, keeping)]
    assert [evaluator.evaluate(engine).unsaved for evaluator in evaluators] == ["", ""]
    train(engine, range(1))
    assert evaluators[0].evaluate(engine).unsaved == "the buffer seen"
    with pytest.raises(ConfigError, match="training changes the buffer seen, which no checkpoint holds"):
        evaluators[1].evaluate(engine)
    engine.destroy()
