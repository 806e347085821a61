"""An optimizer that spoils its own memory once: after an update one moment of one rank is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from stormsail.platform.config.training import OptimizerSection


class Poisoned(torch.optim.AdamW):
    """AdamW; in the process that takes the file `poison` away, update `at` leaves a NaN behind."""

    poison: Path
    at: int

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # DeepSpeed wants no loss back
        super().step(closure)
        memories = [memory for memory in self.state.values() if memory.get("exp_avg") is not None]
        if not memories or int(memories[0]["step"]) != self.at or torch.distributed.get_rank() != 1:
            return
        try:
            self.poison.unlink()
        except FileNotFoundError:
            return
        memories[0]["exp_avg"].view(-1)[0] = float("nan")


def build(section: OptimizerSection, named_parameters: Sequence[tuple[str, nn.Parameter]]) -> Poisoned:
    made = Poisoned([parameter for _, parameter in named_parameters], lr=section.lr)
    made.poison, made.at = Path(section.args["poison"]), int(section.args["at"])
    return made
