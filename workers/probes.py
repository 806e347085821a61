"""What is looked at inside the model during a sampled step: ranges of activations, attention logits, predictions.

Looking changes no number: values are read after they were computed, without gradients and without randomness. Outputs
of layer groups are seen from outside, in any model. Attention logits and predictions only the model knows: one that
wants them watched declares `self.observer = None` in a module, and tells it in forward where it is not None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from stormsail.workers.layer_groups import group_of

OBSERVER = "observer"

_QUERIES = 256  # the last ones of one sample; all pairs of a long sequence would not fit anywhere


class Observer(Protocol):
    """What a model may tell during a sampled step, through the `observer` of any of its modules."""

    def predictions(self, logits: Tensor, targets: Tensor, mask: Tensor) -> None:
        """Scores of the next token [..., V], the tokens that follow [...], and which of them count [...]."""

    def attention(self, queries: Tensor, keys: Tensor, scale: float) -> None:
        """Queries and keys [B, H, T, K] as they are multiplied, and what the product is multiplied by."""


class StepProbe:
    """Looks at the forward passes of one step; a context manager around them.

    Args:
        module: The model.
        groups: Names of its layer groups.

    Attributes:
        spent_s: Seconds that looking has taken.
    """

    def __init__(self, module: nn.Module, groups: Sequence[str]) -> None:
        self._module = module
        self._groups = groups
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._observed: list[nn.Module] = []
        self._largest: dict[str, Tensor] = {}
        self._logits: dict[str, Tensor] = {}
        self._correct: Tensor | None = None
        self.spent_s = 0.0

    def __enter__(self) -> Self:
        begun = time.perf_counter()
        modules = dict(self._module.named_modules())
        for group in self._groups:
            if group in modules:
                self._handles.append(modules[group].register_forward_hook(self._hook(group)))
        for name, module in modules.items():
            if getattr(module, OBSERVER, self) is None:
                module.observer = _Told(self, self._group_of_module(name))
                self._observed.append(module)
        self.spent_s += time.perf_counter() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        for module in self._observed:
            module.observer = None  # type: ignore[assignment] # no submodule

    def results(self) -> tuple[tuple[float, ...], tuple[float, ...], int]:
        """By layer group, the largest absolute output and the largest attention logit (nan: not seen, inf: not finite).

        Returns:
            Both, and how many real tokens were predicted, or -1 if the model told nothing about that.
        """
        begun = time.perf_counter()
        largest = tuple(_number(self._largest.get(group)) for group in self._groups)
        logits = tuple(_number(self._logits.get(group)) for group in self._groups)
        correct = -1 if self._correct is None else int(self._correct)
        self.spent_s += time.perf_counter() - begun
        return largest, logits, correct

    def saw_attention(self, group: str, largest: Tensor) -> None:
        """Keep the largest attention logit of a group."""
        self._logits[group] = _larger(self._logits.get(group), largest)

    def saw_correct(self, count: Tensor) -> None:
        """Add predicted tokens."""
        self._correct = count if self._correct is None else self._correct + count

    def _hook(self, group: str) -> Callable[[nn.Module, tuple[Any, ...], object], None]:
        def look(_module: nn.Module, _inputs: tuple[Any, ...], output: object) -> None:
            begun = time.perf_counter()
            seen = _first_tensor(output)
            if seen is not None:
                low, high = torch.aminmax(seen.detach())
                self._largest[group] = _larger(self._largest.get(group), torch.maximum(-low, high))
            self.spent_s += time.perf_counter() - begun

        return look

    def _group_of_module(self, name: str) -> str:
        group = group_of(f"{name}.weight" if name else "weight")
        return group if group in self._groups else name


class _Told:
    """The observer of one module."""

    def __init__(self, probe: StepProbe, group: str) -> None:
        self._probe = probe
        self._group = group

    @torch.no_grad()
    def predictions(self, logits: Tensor, targets: Tensor, mask: Tensor) -> None:
        begun = time.perf_counter()
        right = (logits.detach().argmax(-1) == targets) & (mask > 0)
        self._probe.saw_correct(right.sum())
        self._probe.spent_s += time.perf_counter() - begun

    @torch.no_grad()
    def attention(self, queries: Tensor, keys: Tensor, scale: float) -> None:
        begun = time.perf_counter()
        tokens = keys.shape[-2]
        logits = (queries[:1, :, -_QUERIES:] @ keys[:1].transpose(-2, -1)).float() * scale
        first = tokens - logits.shape[-2]
        ahead = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu_(first + 1)
        self._probe.saw_attention(self._group, logits.masked_fill_(ahead, -math.inf).amax())
        self._probe.spent_s += time.perf_counter() - begun


def _first_tensor(output: object) -> Tensor | None:
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) and output.is_floating_point() and output.numel() else None


def _larger(before: Tensor | None, now: Tensor) -> Tensor:
    return now if before is None else torch.maximum(before, now)


def _number(found: Tensor | None) -> float:
    """Nan for what was not seen; so what is not finite is infinite."""
    if found is None:
        return math.nan
    value = float(found)
    return value if math.isfinite(value) else math.inf
