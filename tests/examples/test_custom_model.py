"""The example with a model from elsewhere: its factories work, and it learns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.workers.factories import build_data, build_model, build_optimizer, call_model, held_out_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_model"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunConfig]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield load_config(EXAMPLE / "custom.yaml", environ={})
    for name in ("adapter", "tiny_gpt"):
        sys.modules.pop(name, None)


def test_only_the_answers_are_learnt(config: RunConfig) -> None:
    tokens, targets, mask = build_data(config.data).sample(3705 - 185)  # every twentieth problem is left out
    assert bytes(tokens.astype(np.uint8)).decode().rstrip() == "37+5=42;"
    assert bytes(targets[mask == 1].astype(np.uint8)).decode() == "42;"


def test_every_problem_is_either_trained_on_or_evaluated_on(config: RunConfig) -> None:
    trained = build_data(config.data.model_copy(update={"args": {"largest": 19}}))
    held_out = held_out_of(trained, config)
    assert held_out is not None
    texts = [source.sample(index)[0].tobytes() for source in (trained, held_out) for index in range(source.samples())]
    assert len(texts) == len(set(texts)) == 20 * 20


@pytest.mark.slow
def test_a_few_steps_lower_the_loss(config: RunConfig) -> None:
    torch.manual_seed(config.seed)
    model, source = build_model(config.model), build_data(config.data)
    optimizer = build_optimizer(config.optimizer, list(model.named_parameters()))
    order = DataOrder(source.samples(), config.seed)
    means = []
    for step in range(8):
        samples = [source.sample(int(i)) for i in order.sample_ids(step, config.train.global_batch)]
        tokens, targets, mask = (torch.from_numpy(np.stack(part)) for part in zip(*samples, strict=True))
        mean = call_model(model, tokens, targets, mask).sum() / mask.sum()
        optimizer.zero_grad()
        torch.autograd.backward(mean)
        optimizer.step()
        means.append(float(mean.detach()))
    assert means[0] == pytest.approx(np.log(256), abs=0.3)
    assert means[-1] < means[0] - 1
