"""Which column of a log is the step, the loss, the gradient norm: guessed by name, or as told; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.platform.errors import ConfigError

# Best first. Compared without case, with every other sign as one underscore, and without a leading "train_".
_STEP = (
    "step",
    "global_step",
    "_step",
    "iteration",
    "iter",
    "steps",
    "it",
    "update",
    "num_updates",
    "trainer_global_step",
    "batch",
)
_LOSS = (
    "loss",
    "lm_loss",
    "loss_train",
    "step_loss",
    "ce_loss",
    "cross_entropy",
    "cross_entropy_loss",
    "language_cross_entropy",
    "ce",
    "nll",
    "nll_loss",
    "total_loss",
    "lm_loss_validation",
)
_NORM = (
    "grad_norm",
    "gradient_norm",
    "global_grad_norm",
    "gnorm",
    "grad_norm_total",
    "total_grad_norm",
    "norm",
    "total_norm",
    "l2_norm_grad_global",
    "optim_total_grad_norm",
    "grads_norm",
)

_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")
_TENSOR = re.compile(r"tensor\(([^,()]+)(?:,.*)?\)")


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns (or of metrics); None: guess.

    Attributes:
        step: Of the step.
        loss: Of the training loss, in nats.
        norm: Of the gradient norm before clipping.
    """

    step: str | None = None
    loss: str | None = None
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of one file; step and norm may be missing."""

    step: str | None
    loss: str
    norm: str | None

    def notes(self, asked: Columns) -> tuple[str, ...]:
        """What was guessed, for the reader to check."""
        said = []
        if asked.loss is None and plain(self.loss) != "loss":
            said.append(f"the loss is taken from {self.loss!r}")
        if self.norm is not None and asked.norm is None and plain(self.norm) != "grad_norm":
            said.append(f"the gradient norm is taken from {self.norm!r}")
        if self.step is None:
            said.append(
                "there is no step column: rows are counted from 0, so that no restart and no second run can be seen"
            )
        return tuple(said)


def choose(names: Sequence[str], asked: Columns, where: str) -> Chosen:
    """Pick the columns among those that a file has.

    Raises:
        ConfigError: A column that was asked for is missing, or none looks like a loss.
    """
    for option, name in (("--step-column", asked.step), ("--loss-column", asked.loss), ("--norm-column", asked.norm)):
        if name is not None and name not in names:
            raise ConfigError(f"there is no column {name!r} ({option})", where=where, todo=_has(names))
    loss = asked.loss or _guess(names, _LOSS)
    if loss is None:
        raise ConfigError(
            "no column looks like a training loss", where=where, todo=f"{_has(names)}; --loss-column NAME"
        )
    return Chosen(asked.step or _guess(names, _STEP), loss, asked.norm or _guess(names, _NORM))


def plain(name: str) -> str:
    """A name as it is compared: "train/Grad Norm" and "grad_norm" are the same."""
    word = re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")
    return re.sub(r"^(train|training|trainer|optim|metrics)_(?=.)", "", word)


def number(text: object) -> float | None:
    """A cell as a number; None for an empty cell.

    "nan" and "inf" are numbers, and so are "1,234.5" and what PyTorch prints of a loss that was logged as a tensor.
    What is too large for a float is infinite. Raises `ValueError` for any other text.
    """
    if text is None or isinstance(text, bool):
        return None
    if isinstance(text, int | float):
        try:
            return float(text)
        except OverflowError:
            return math.inf if text > 0 else -math.inf
    word = str(text).strip()
    if not word or word.lower() in ("none", "null", "na", "-"):
        return None
    tensor = _TENSOR.fullmatch(word)
    if tensor is not None:
        word = tensor[1]
    elif _THOUSANDS.fullmatch(word):
        word = word.replace(",", "")
    return float(word)


def _guess(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    by_plain: dict[str, str] = {}
    for name in names:
        by_plain.setdefault(plain(name), name)
    exact = next((by_plain[word] for word in wanted if word in by_plain), None)
    if exact is not None:
        return exact
    # "run_7/grad_norm" still ends as a norm does; the shorter name is the more general one.
    ending = [name for word in wanted[:3] for name in names if plain(name).endswith(f"_{word}") and not _is_other(name)]
    return min(ending, key=len) if ending else None


def _is_other(name: str) -> bool:
    return re.search(r"val|eval|test|aux|param", name.lower()) is not None


def _has(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"it has {shown}{', ...' if len(names) > 20 else ''}"  # noqa: PLR2004 - enough to find the right one
