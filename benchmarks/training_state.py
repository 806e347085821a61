"""Real training states to measure checkpoints with: the quickstart's model, trained here and kept for the next time.

Plain torch, no engine: bf16 weights and gradients, fp32 masters, the built-in AdamW, the quickstart's data and
schedule. The rounded branch goes on from a state whose live moments and masters were rounded in place.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stormsail.platform.checkpoint.rounding import mantissa_bits, round_words
from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.platform.home import Home
from stormsail.workers import factories
from stormsail.workers.batches import BatchReader
from stormsail.workers.schedule import scheduled_lr

State: TypeAlias = dict[tuple[str, str], NDArray[np.float32]]

QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart.yaml"
COMPONENTS = ("master", "exp_avg", "exp_avg_sq")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to train.

    Attributes:
        model: Changes to the quickstart's model arguments.
        steps: Steps of the schedule.
        at: The step of the keyframe.
        later: The step of the difference.
        batch: Samples per step.
    """

    model: tuple[tuple[str, int], ...] = ()
    steps: int = 600
    at: int = 480
    later: int = 490
    batch: int = 8


LARGE = Recipe(model=(("d_model", 768), ("layers", 8), ("heads", 12)), at=20, later=30, batch=2)
"""57 million parameters, for what is timed."""


@dataclass(frozen=True, slots=True)
class States:
    """Three states of one training.

    Attributes:
        keyframe: At the first step.
        later: Some steps later.
        rounded: `keyframe` rounded, as it is stored in rounding mode.
        rounded_later: The same steps later from there, rounded again.
        shapes: Shape of each tensor.
    """

    keyframe: State
    later: State
    rounded: State
    rounded_later: State
    shapes: dict[str, tuple[int, ...]]

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return sum(values.size for (_, component), values in self.keyframe.items() if component == "master")


def states(recipe: Recipe) -> States:
    """The states of a recipe: from the home folder if they were made before, else trained now."""
    name = hashlib.sha256(json.dumps([_VERSION, *map(str, _facts(recipe))]).encode()).hexdigest()[:16]
    path = Home.here().path / "benchmarks" / f"state-{name}.npz"
    if not path.is_file():
        made = _train(recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **made)
        partial.replace(path)
    return _unpacked(path)


def _facts(recipe: Recipe) -> list[object]:
    return [recipe, QUICKSTART.read_text(encoding="utf-8"), torch.__version__]


def _config(recipe: Recipe) -> RunConfig:
    overrides = [f"train.steps={recipe.steps}", f"train.global_batch={recipe.batch}", "drill.faults=[]"]
    overrides += ["drill.twin_step=null", *(f"model.args.{name}={value}" for name, value in recipe.model)]
    return load_config(QUICKSTART, overrides=overrides, environ={})


class Trainer:
    """A model in training: a bf16 module that computes, and an fp32 one whose parameters are the masters."""

    def __init__(self, config: RunConfig) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._masters = factories.build_model(config.model)
        self._module = copy.deepcopy(self._masters).to(torch.bfloat16)
        self._named = list(self._masters.named_parameters())
        self._optimizer = factories.build_optimizer(config.optimizer, self._named)
        self._ratios = [float(group["lr"]) / config.optimizer.lr for group in self._optimizer.param_groups]
        self._reader = BatchReader(
            factories.build_data(config.data),
            rank=0,
            world_size=1,
            global_batch=config.train.global_batch,
            micro_batch=config.train.micro_batch,
            sequence_tokens=config.data.sequence_tokens,
        )
        self._order = DataOrder(self._reader.samples, config.seed, ())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter."""
        return {name: tuple(parameter.shape) for name, parameter in self._named}

    def run(self, first: int, last: int, *, rounded: bool = False) -> None:
        """Steps `first` to `last` - 1; then round the live state in place if asked to."""
        begun = time.perf_counter()
        for step in range(first, last):
            loss = self._step(step)
            if step % 50 == 0:
                print(f"step {step}: loss {loss:.3f}, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        if rounded:
            self.round()

    def load(self, state: State) -> None:
        """Take over the masters of a state; the moments stay as they are."""
        with torch.no_grad():
            for name, master in self._named:
                master.copy_(torch.from_numpy(state[name, "master"]).view(master.shape))
        self._publish()

    def gradient(self, step: int) -> dict[str, NDArray[np.float32]]:
        """The gradient of a step as it is before clipping, flat, by parameter; it is dropped afterwards."""
        self._backward(step)
        found = {
            name: master.grad.reshape(-1).numpy().copy() for name, master in self._named if master.grad is not None
        }
        self._optimizer.zero_grad(set_to_none=True)
        return found

    def _backward(self, step: int) -> float:
        train = self._config.train
        total = 0.0
        for tokens, targets, mask in self._reader.micro_batches(step, self._order):
            losses = self._module(tokens, targets, mask)
            scaled = (losses.float() * mask).sum() / (train.global_batch * self._config.data.sequence_tokens)
            scaled.backward()
            total += float(scaled.detach())
            for (_, master), live in zip(self._named, self._module.parameters(), strict=True):
                if live.grad is not None:
                    gradient = live.grad.float()
                    master.grad = gradient if master.grad is None else master.grad + gradient
                    live.grad = None
        return total

    def _step(self, step: int) -> float:
        train = self._config.train
        total = self._backward(step)
        torch.nn.utils.clip_grad_norm_([master for _, master in self._named], self._config.train.clip_norm or math.inf)
        schedule = self._config.schedule
        rate = scheduled_lr(
            step,
            peak=self._config.optimizer.lr,
            warmup_steps=schedule.warmup_steps,
            total_steps=train.steps,
            min_ratio=schedule.min_ratio,
        )
        for group, ratio in zip(self._optimizer.param_groups, self._ratios, strict=True):
            group["lr"] = rate * ratio
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._publish()
        return total

    @torch.no_grad()
    def _publish(self) -> None:
        for (_, master), live in zip(self._named, self._module.parameters(), strict=True):
            live.copy_(master)

    def _live(self) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
        for name, parameter in self._named:
            yield (name, "master"), parameter.detach()
            for component in COMPONENTS[1:]:
                yield (name, component), self._optimizer.state[parameter][component]

    def state(self) -> State:
        """A copy of masters and moments, flat."""
        return {key: live.reshape(-1).numpy().copy() for key, live in self._live()}

    @torch.no_grad()
    def round(self) -> None:
        """Round the live state in place, as rounding mode does at a checkpoint."""
        for (_, component), live in self._live():
            words = live.numpy().reshape(-1).view(np.uint32)
            words[:] = round_words(words, mantissa_bits(component))
        self._publish()


def gradient(found: States, recipe: Recipe) -> dict[str, NDArray[np.float32]]:
    """The gradient of the step that follows the keyframe."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer = Trainer(_config(recipe))
        trainer.load(found.keyframe)
        return trainer.gradient(recipe.at)
    finally:
        torch.set_num_threads(threads)


def _train(recipe: Recipe) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer = Trainer(_config(recipe))
        trainer.run(0, recipe.at)
        kept = {"keyframe": trainer.state()}
        branch = copy.deepcopy(trainer)
        trainer.run(recipe.at, recipe.later)
        kept["later"] = trainer.state()
        branch.round()
        kept["rounded"] = branch.state()
        branch.run(recipe.at, recipe.later, rounded=True)
        kept["rounded_later"] = branch.state()
    finally:
        torch.set_num_threads(threads)
    arrays = {
        f"{which}|{name}|{component}": values
        for which, state in kept.items()
        for (name, component), values in state.items()
    }
    shapes = {f"shape|{name}": np.array(shape, np.int64) for name, shape in trainer.shapes.items()}
    return {**arrays, **shapes}


def _unpacked(path: Path) -> States:
    found: dict[str, State] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            which, name, *component = key.split("|")
            if which == "shape":
                shapes[name] = tuple(int(size) for size in arrays[key])
            else:
                found.setdefault(which, {})[name, component[0]] = arrays[key]
    return States(shapes=shapes, **found)
