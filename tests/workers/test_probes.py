"""Looking into the model during a sampled step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from stormsail.platform.config.training import ModelSection
from stormsail.workers.model import build_transformer
from stormsail.workers.probes import StepProbe

VOCAB, TOKENS = 16, 12


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return build_transformer(ModelSection(args={"vocab_size": VOCAB, "d_model": 8, "layers": 2, "heads": 2}))


GROUPS = ("embed", "blocks.0", "blocks.1", "norm", "head")


def batch() -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, VOCAB, (3, TOKENS + 1), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(3, TOKENS)
    mask[0, :4] = 0.0
    return tokens[:, :-1], tokens[:, 1:], mask


def test_looking_changes_no_bit_of_losses_gradients_or_random_state(model: nn.Module) -> None:
    found = []
    for probed in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        with StepProbe(model, GROUPS) if probed else torch.enable_grad():
            losses = model(*batch())
            losses.sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found.append([losses.detach(), *gradients, torch.rand(1)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_every_layer_group_has_a_range_and_every_block_its_attention(model: nn.Module) -> None:
    with StepProbe(model, GROUPS) as probe:
        model(*batch())
    largest, logits, _ = probe.results()
    assert all(value > 0.0 for value in largest)
    assert [math.isnan(value) for value in logits] == [True, False, False, True, True]
    assert probe.spent_s > 0.0


def test_ranges_are_those_of_the_outputs(model: nn.Module) -> None:
    seen: list[Tensor] = []
    handle = model.get_submodule("blocks.1").register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))
    with StepProbe(model, GROUPS) as probe:
        model(*batch())
        model(*batch())
    handle.remove()
    assert probe.results()[0][2] == pytest.approx(float(torch.stack(seen).abs().max()))


def test_predictions_are_counted_over_real_tokens_of_all_micro_batches(model: nn.Module) -> None:
    tokens, targets, mask = batch()
    logits = model.logits(tokens)  # type: ignore[operator] # the built-in model's own
    expected = int(((logits.argmax(-1) == targets) & (mask > 0)).sum())
    with StepProbe(model, GROUPS) as probe:
        model(tokens, targets, mask)
        model(tokens, targets, mask)
    assert probe.results()[2] == 2 * expected


def test_attention_looks_only_back() -> None:
    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.observer = None

        def forward(self, queries: Tensor, keys: Tensor) -> None:
            if self.observer is not None:
                self.observer.attention(queries, keys, 0.5)

    told = Told()
    queries, keys = torch.zeros(2, 1, 4, 2), torch.zeros(2, 1, 4, 2)
    queries[0, 0, 2, 0], keys[0, 0, 1, 0], keys[0, 0, 3, 0] = 3.0, 2.0, 100.0
    with StepProbe(told, ("",)) as probe:
        told(queries, keys)
    assert probe.results()[1] == (3.0,)
    assert told.observer is None


def test_what_is_not_finite_is_infinite_and_what_is_not_there_is_absent() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()
            self.idle = nn.Identity()

        def forward(self, values: Tensor) -> Tensor:
            found: Tensor = self.part(values / 0.0)
            return found

    broken = Broken()
    with StepProbe(broken, ("part", "idle", "gone")) as probe:
        broken(torch.zeros(2))
    largest, _, correct = probe.results()
    assert largest[0] == math.inf
    assert math.isnan(largest[1])
    assert math.isnan(largest[2])
    assert correct == -1


def test_afterwards_nothing_is_left_in_the_model(model: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), StepProbe(model, GROUPS):
        raise RuntimeError("on purpose")
    assert not any(module._forward_hooks for module in model.modules())
    assert all(getattr(module, "observer", None) is None for module in model.modules())


def test_an_observer_of_the_models_own_is_left_alone(model: nn.Module) -> None:
    own = object()
    model.observer = own  # type: ignore[assignment] # a user's
    with StepProbe(model, GROUPS):
        assert model.observer is own
    assert model.observer is own
