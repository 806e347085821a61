"""The whole of what Stormsail needs to train a model that it did not make: two factory functions.

`custom.yaml` names them as `adapter:build_model` and `adapter:build_data`. Each is called with its section of the
configuration, on every rank alike. Torch is seeded before, so that all ranks build the same weights.
"""

from __future__ import annotations

import numpy as np
from tiny_gpt import TinyGptConfig, TinyGptForCausalLM
from torch import Tensor, nn
from torch.nn import functional

from stormsail.platform.config.training import DataSection, ModelSection
from stormsail.workers.probes import Observer


class LossPerToken(nn.Module):
    """Turns logits into what the step loop wants: the loss of each token, times its mask."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.observer: Observer | None = None  # there on sampled steps only; leave it out, and accuracy is not watched

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        logits = self.inner(tokens).logits.float()
        if self.observer is not None:
            self.observer.predictions(logits, targets, mask)
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view_as(mask) * mask


class Sums:
    """Addition problems as text, `37+5=42`; only the answer is learnt, the rest is masked out.

    Every twentieth problem is not trained on: they are a source of their own, on which the run is evaluated.
    """

    def __init__(self, largest: int, sequence_tokens: int, *, held_out: bool = False) -> None:
        self._largest = largest
        self._sequence_tokens = sequence_tokens
        self._is_held_out = held_out
        # Runs compare this before they continue: it must change whenever a sample does.
        self.digest = f"sums/{largest}/{sequence_tokens}/{'held out' if held_out else '19 of 20'}"

    def samples(self) -> int:
        problems = (self._largest + 1) ** 2
        return problems // 20 if self._is_held_out else problems - problems // 20

    def held_out(self) -> Sums:
        return Sums(self._largest, self._sequence_tokens, held_out=True)

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        problem = 20 * index + 19 if self._is_held_out else index + index // 19
        first, second = divmod(problem, self._largest + 1)
        question = f"{first}+{second}="
        text = f"{question}{first + second};".ljust(self._sequence_tokens + 1)
        letters = np.frombuffer(text.encode("ascii")[: self._sequence_tokens + 1], dtype=np.uint8).astype(np.int64)
        place = np.arange(self._sequence_tokens)
        answer = (place >= len(question) - 1) & (letters[1:] != ord(" "))
        return letters[:-1], letters[1:], answer.astype(np.float32)


def build_model(section: ModelSection) -> nn.Module:
    return LossPerToken(TinyGptForCausalLM.from_config(TinyGptConfig(**section.args)))


def build_data(section: DataSection) -> Sums:
    return Sums(section.args.get("largest", 99), section.sequence_tokens)
