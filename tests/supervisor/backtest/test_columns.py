"""Columns are found by name, or as told."""

from __future__ import annotations

import math

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Chosen, Columns, choose, number, plain


@pytest.mark.parametrize(
    ("names", "step", "loss", "norm"),
    [
        (["step", "loss", "grad_norm"], "step", "loss", "grad_norm"),
        (["Step", "train/loss", "train/grad_norm", "eval/loss"], "Step", "train/loss", "train/grad_norm"),
        (["_step", "loss/train", "loss/val"], "_step", "loss/train", None),
        (["iteration", "lm loss", "grad-norm", "lr"], "iteration", "lm loss", "grad-norm"),
        (["trainer/global_step", "train_loss", "val_loss"], "trainer/global_step", "train_loss", None),
        (["tag", "my_run - loss", "my_run - grad_norm"], None, "my_run - loss", "my_run - grad_norm"),
        (["lm-loss-training/lm loss", "lm-loss-validation/lm loss validation"], None, "lm-loss-training/lm loss", None),
    ],
)
def test_usual_names_are_understood(names: list[str], step: str | None, loss: str, norm: str | None) -> None:
    assert choose(names, Columns(), "x.csv") == Chosen(step, loss, norm)


def test_what_was_asked_for_wins() -> None:
    names = ["step", "loss", "ce", "tokens", "gn"]
    assert choose(names, Columns("tokens", "ce", "gn"), "x") == Chosen("tokens", "ce", "gn")


def test_a_column_that_is_missing_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match=r"no column 'los' \(--loss-column\)[\s\S]*it has step, loss"):
        choose(["step", "loss"], Columns(loss="los"), "x")


def test_a_validation_loss_is_no_training_loss() -> None:
    with pytest.raises(ConfigError, match="no column looks like a training loss"):
        choose(["step", "run/val_loss", "accuracy"], Columns(), "x")


def test_guesses_that_are_not_obvious_are_told() -> None:
    assert len(choose(["x", "lm loss", "gnorm"], Columns(), "x").notes(Columns())) == 3
    assert choose(["step", "train/loss", "grad_norm"], Columns(), "x").notes(Columns()) == ()


def test_names_are_compared_without_case_and_signs() -> None:
    assert plain("train/Grad Norm") == plain("grad_norm")
    assert plain("train") == "train"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1e-3", 1e-3),
        (" 2 ", 2.0),
        ("", None),
        (None, None),
        ("None", None),
        (3, 3.0),
        ("-1,234,567.5", -1234567.5),
        ("1_000", 1000.0),
        ("tensor(3.8)", 3.8),
        ("tensor(3.8, device='cuda:0', grad_fn=<NllLossBackward0>)", 3.8),
        (-(10**400), -math.inf),
    ],
)
def test_cells_become_numbers(cell: object, value: float | None) -> None:
    assert number(cell) == value


def test_nan_and_infinity_are_numbers() -> None:
    assert math.isnan(number("NaN") or 0.0)
    assert number("-inf") == -math.inf


@pytest.mark.parametrize("text", ["abc", "1,00", "3,8", "tensor([3.8, 2])"])
def test_text_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        number(text)
