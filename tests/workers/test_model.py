"""The built-in transformer."""

from __future__ import annotations

import math

import pytest
import torch

from stormsail.platform.config.builtin_args import TransformerArgs
from stormsail.platform.config.training import ModelSection, OptimizerSection
from stormsail.platform.errors import UserCodeError
from stormsail.workers.model import Transformer, build_transformer
from stormsail.workers.optim import build_adamw

SMALL = TransformerArgs(vocab_size=50, d_model=32, layers=2, heads=4)


def _batch(count: int = 2, tokens: int = 16, vocab: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drawn = torch.randint(0, vocab, (count, tokens + 1), generator=torch.Generator().manual_seed(1))
    return drawn[:, :-1], drawn[:, 1:], torch.ones(count, tokens)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"norm": "layernorm"},
        {"qk_norm": True},
        {"qk_norm": True, "norm": "layernorm"},
        {"tie_embeddings": False},
        {"mlp_ratio": 2.6},
    ],
    ids=["plain", "layernorm", "qk norm", "both", "untied", "odd ratio"],
)
def test_the_count_without_building_equals_the_built_model(change: dict[str, object]) -> None:
    args = TransformerArgs.model_validate(SMALL.model_dump() | change)
    built = sum(parameter.numel() for parameter in Transformer(args, seed=0).parameters())
    assert built == args.parameter_count()


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_gets_a_gradient(norm: str, tied: bool) -> None:
    args = TransformerArgs.model_validate(SMALL.model_dump() | {"norm": norm, "qk_norm": True, "tie_embeddings": tied})
    model = Transformer(args, seed=0)
    model(*_batch()).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.abs().sum() > 0), name


def test_the_loss_is_one_float32_per_token() -> None:
    losses = Transformer(SMALL, seed=0)(*_batch())
    assert losses.shape == (2, 16)
    assert losses.dtype == torch.float32


def test_an_untrained_model_knows_about_nothing() -> None:
    losses = Transformer(SMALL, seed=0)(*_batch(8))
    assert float(losses.detach().mean()) == pytest.approx(math.log(50), abs=0.8)


def test_masked_tokens_cost_nothing_and_pull_at_nothing() -> None:
    tokens, targets, mask = _batch()
    mask[1] = 0
    model = Transformer(SMALL, seed=0)
    whole = model(tokens, targets, mask)
    assert bool((whole[1] == 0).all())
    whole.sum().backward()
    masked = [parameter.grad for parameter in model.parameters()]
    alone = Transformer(SMALL, seed=0)
    alone(tokens[:1], targets[:1], mask[:1]).sum().backward()
    for first, second in zip(masked, alone.parameters(), strict=True):
        torch.testing.assert_close(first, second.grad)


def test_a_batch_without_a_single_real_token_has_finite_gradients() -> None:
    tokens, targets, mask = _batch()
    model = Transformer(SMALL, seed=0)
    model(tokens, torch.full_like(targets, -100), torch.zeros_like(mask)).sum().backward()
    assert all(bool((parameter.grad == 0).all()) for parameter in model.parameters() if parameter.grad is not None)


def test_a_token_never_sees_what_comes_after_it() -> None:
    tokens, targets, mask = _batch(1)
    model = Transformer(SMALL, seed=0)
    changed = tokens.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 50
    first, second = model(tokens, targets, mask), model(changed, targets, mask)
    torch.testing.assert_close(first[0, :9], second[0, :9])
    assert not torch.equal(first[0, 9:], second[0, 9:])


def test_the_order_of_earlier_tokens_matters() -> None:
    tokens, _, _ = _batch(1)
    swapped = tokens.clone()
    swapped[0, [2, 5]] = swapped[0, [5, 2]]
    model = Transformer(SMALL, seed=0)
    assert not torch.allclose(model.logits(tokens)[0, -1], model.logits(swapped)[0, -1])


def test_equal_seeds_give_equal_weights_whatever_was_drawn_before() -> None:
    section = ModelSection(args=SMALL.model_dump())
    torch.manual_seed(5)
    first = build_transformer(section).state_dict()
    torch.manual_seed(5)
    torch.rand(100)
    second = build_transformer(section).state_dict()
    torch.manual_seed(6)
    other = build_transformer(section).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_same_batch_gives_the_same_bits_twice() -> None:
    def gradients() -> list[torch.Tensor]:
        model = Transformer(SMALL, seed=0)
        model(*_batch()).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    torch.use_deterministic_algorithms(mode=True)
    try:
        assert all(torch.equal(first, second) for first, second in zip(gradients(), gradients(), strict=True))
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_it_runs_in_bf16_and_still_returns_float32() -> None:
    losses = Transformer(SMALL, seed=0).to(torch.bfloat16)(*_batch())
    assert losses.dtype == torch.float32
    exact = Transformer(SMALL, seed=0)(*_batch())
    torch.testing.assert_close(losses, exact, rtol=0.05, atol=0.1)


def test_residual_outputs_start_smaller_the_deeper_the_model() -> None:
    def spread(layers: int) -> float:
        args = SMALL.model_copy(update={"layers": layers, "d_model": 64})
        return float(Transformer(args, seed=0).get_parameter("blocks.0.mlp.down.weight").detach().std())

    assert spread(2) / spread(8) == pytest.approx(2.0, rel=0.05)


def test_a_fixed_standard_deviation_is_obeyed() -> None:
    model = Transformer(SMALL.model_copy(update={"init_std": 0.02, "d_model": 64}), seed=0)
    assert float(model.get_parameter("blocks.0.mlp.up.weight").detach().std()) == pytest.approx(0.02, rel=0.05)


def test_dropout_acts_in_training_only() -> None:
    model = Transformer(SMALL.model_copy(update={"dropout": 0.5}), seed=0)
    assert not torch.equal(model(*_batch()), model(*_batch()))
    model.eval()
    assert torch.equal(model(*_batch()), model(*_batch()))


def test_a_token_beyond_the_vocabulary_names_the_key_to_change() -> None:
    tokens, targets, mask = _batch()
    tokens[0, 3] = 50
    with pytest.raises(UserCodeError, match="token 50, but the model knows only 50"):
        Transformer(SMALL, seed=0)(tokens, targets, mask)


def _mup(width: int, *, on: bool) -> Transformer:
    args = TransformerArgs(vocab_size=32, d_model=width, layers=2, heads=width // 16, mup_base_width=16 if on else None)
    return Transformer(args, seed=3)


def test_at_the_base_width_mu_parametrisation_changes_nothing() -> None:
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.equal(_mup(16, on=True).logits(tokens), _mup(16, on=False).logits(tokens))


@pytest.mark.parametrize("on", [True, False])
def test_coordinate_check(on: bool) -> None:
    """Under mu-parametrisation a few Adam steps move the logits as much at any width; without it, more in wide models."""
    tokens, targets, mask = _batch(count=4, tokens=16, vocab=32)
    moved = []
    for width in (32, 256):
        model = _mup(width, on=on)
        section = OptimizerSection(lr=3e-3, weight_decay=0.0, args={"hidden_lr_scale": 16 / width if on else 1.0})
        optimizer = build_adamw(section, model.named_parameters())
        with torch.no_grad():
            before = model.logits(tokens)
        for _ in range(3):
            optimizer.zero_grad()
            model(tokens, targets, mask).mean().backward()
            optimizer.step()
        with torch.no_grad():
            moved.append(float((model.logits(tokens) - before).square().mean().sqrt()))
    growth = moved[1] / moved[0]
    assert 0.5 < growth < 1.1 if on else growth > 2.0, moved
