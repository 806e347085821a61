"""A small training run of two ranks in one process that can be broken on purpose, and replayed.

Masters and moments are fp32, compute is bf16 or fp32 as in the product; model, data order, batches, optimizer, clip
rule, schedule and detectors are the product's own. What is missing is only what moves tensors between processes.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stormsail.platform.config.builtin_args import TransformerArgs
from stormsail.platform.config.training import DataSection, OptimizerSection
from stormsail.platform.data.order import DataOrder
from stormsail.platform.data.source import DataSource, stdlib_source
from stormsail.platform.data.tokens import Sample
from stormsail.platform.diagnosis import TraceRow
from stormsail.workers.batches import BatchReader, checksum
from stormsail.workers.clip import clip_factor
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, Verdict, VerdictKind, judge
from stormsail.workers.layer_groups import LayerGroups
from stormsail.workers.model import Block, Rotation, Transformer
from stormsail.workers.optim import build_adamw
from stormsail.workers.schedule import scheduled_lr

ARGS = TransformerArgs(vocab_size=256, d_model=48, layers=4, heads=4)
RANKS, GLOBAL_BATCH, SEQUENCE = 2, 8, 64
NOMINAL_TOKENS = GLOBAL_BATCH * SEQUENCE
CLIP_NORM = 1.0
POLICY = Policy()
BASE_STEP = 200
_PASSES = itertools.count(1)
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class PostNormBlock(Block):
    """The same block with the norms behind the additions, as in the first transformers."""

    def forward(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:  # noqa: N803 - as in the model
        after_BTD = self.attention_norm(x_BTD + self.attention(x_BTD, rotation))  # noqa: N806
        out: Tensor = self.mlp_norm(after_BTD + self.mlp(after_BTD))
        return out


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model and how it is trained up to the step that all experiments start from.

    Attributes:
        name: For the table.
        block: Class of its blocks.
        layers: How many.
        peak: Learning rate of the plan.
        warmup_steps: Steps of its linear warm-up.
    """

    name: str
    block: type[Block]
    layers: int
    peak: float
    warmup_steps: int


PRE_NORM = Architecture("pre-norm", Block, 4, 2e-3, 40)
POST_NORM = Architecture("post-norm", PostNormBlock, 12, 1.5e-2, 10_000)


@dataclass(frozen=True, slots=True)
class Saved:
    """A state: masters, moments, Adam's counts, detector; shared between experiments, never changed."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    detector: DetectorState


@dataclass
class Breakage:
    """A fault, as hooks into a run. What is not set does nothing.

    Attributes:
        taint: Changes a sample, given its id; the data themselves are bad, for replays too.
        lr_scale: Multiplies the plan of a step.
        gain: Factor on a module's output at a step, for replays too: the model itself misbehaves.
        swell: Factor on the gradient that flows back through a module, for replays too.
        fp16_scale: Loss scale of emulated fp16 at a step; 1 is off; only in the run's own precision.
        strike: Hits the live run once before a step, never a replay; tells whether the run was restarted there.
        spoil: Hits the gradients of the live run at a step, never a replay; tells on which rank, or -1.
    """

    taint: Callable[[int, Sample], Sample] | None = None
    lr_scale: Callable[[int], float] = lambda _step: 1.0
    gain: Callable[[int], dict[str, float]] = lambda _step: {}
    swell: Callable[[int], dict[str, float]] = lambda _step: {}
    fp16_scale: Callable[[int], float] = lambda _step: 1.0
    strike: Callable[[Lab, int], bool] = lambda _lab, _step: False
    spoil: Callable[[Lab, int], int] = lambda _lab, _step: -1


class TaintedSource:
    """A data source with some samples changed."""

    def __init__(self, source: DataSource, taint: Callable[[int, Sample], Sample]) -> None:
        self._source, self._taint = source, taint

    @property
    def digest(self) -> str:
        return self._source.digest

    def samples(self) -> int:
        return self._source.samples()

    def sample(self, index: int, /) -> Sample:
        return self._taint(index, self._source.sample(index))


def data_source() -> DataSource:
    """The Python standard library, byte by byte."""
    return stdlib_source(DataSection(args={"max_bytes": 4_000_000}, sequence_tokens=SEQUENCE))


@dataclass
class Lab:
    """One run.

    Attributes:
        architecture: What is trained.
        source: The data.
        seed: Of weights and data order.
        breakage: What goes wrong.
        live: Whether one-off faults strike; replays are not live.
        precision: bf16 or fp32.
        noise: Relative noise on every gradient element, as a stand-in for arithmetic that does not repeat; 0 is none.
    """

    architecture: Architecture
    source: DataSource
    seed: int
    breakage: Breakage = field(default_factory=Breakage)
    live: bool = True
    precision: str = "bf16"
    noise: float = 0.0
    verdict: Verdict = field(default_factory=lambda: Verdict(VerdictKind.HEALTHY))

    def __post_init__(self) -> None:
        args = ARGS.model_copy(update={"layers": self.architecture.layers})
        self.model = Transformer(args, self.seed)
        for block in self.model.blocks:
            block.__class__ = self.architecture.block
        named = list(self.model.named_parameters())
        groups = LayerGroups.of([name for name, _ in named])
        self.elements = sum(parameter.numel() for _, parameter in named)
        self.names, self.group_index = groups.names, groups.of_parameter
        section = OptimizerSection(lr=self.architecture.peak)
        self.optimizer = build_adamw(section, named)
        self.detector = DetectorState()
        taint = self.breakage.taint
        source = TaintedSource(self.source, taint) if taint is not None else self.source
        self.readers = [
            BatchReader(
                source,
                rank=rank,
                world_size=RANKS,
                global_batch=GLOBAL_BATCH,
                micro_batch=GLOBAL_BATCH // RANKS,
                sequence_tokens=SEQUENCE,
            )
            for rank in range(RANKS)
        ]
        self.samples = self.source.samples()
        self.restored = True
        self.generator = torch.Generator().manual_seed(next(_PASSES))

    # ------------------------------------------------------------------- state

    def save(self, step: int) -> Saved:
        return Saved(
            step,
            {name: value.clone() for name, value in self.model.state_dict().items()},
            copy.deepcopy(self.optimizer.state_dict()),
            self.detector,
        )

    def load(self, saved: Saved) -> None:
        self.model.load_state_dict(saved.model)
        self.optimizer.load_state_dict(copy.deepcopy(saved.optimizer))
        self.detector = saved.detector
        self.restored = True
        self.generator.manual_seed(next(_PASSES))  # no two passes get the same noise

    def planned_lr(self, step: int) -> float:
        plan = self.architecture
        lr = scheduled_lr(step, peak=plan.peak, warmup_steps=plan.warmup_steps, total_steps=100_000, min_ratio=0.1)
        return lr * self.breakage.lr_scale(step)

    # -------------------------------------------------------------------- step

    def step(self, step: int, *, order: DataOrder, lr_factor: float = 1.0) -> TraceRow:
        """Run one step; the product's detectors decide about the update, and their verdict is kept.

        What would be an incident goes on here, clipped as configured.
        """
        if self.live:
            self.restored = self.breakage.strike(self, step) or self.restored
        losses, tokens = self._backward(step, order)
        spoiled = self.breakage.spoil(self, step) if self.live else -1
        row = self._finish(step, losses, tokens, self.planned_lr(step) * lr_factor)
        return dataclasses.replace(row, bad_rank=spoiled) if row.nonfinite and spoiled >= 0 else row

    def _backward(self, step: int, order: DataOrder) -> tuple[list[float], list[int]]:
        self.optimizer.zero_grad(set_to_none=True)
        losses, tokens = [], []
        self.batch = 0
        scale = self.breakage.fp16_scale(step) if self.precision == "bf16" else 1.0
        for reader in self.readers:
            total, count = 0.0, 0
            for batch in reader.micro_batches(step, order):
                self.batch += checksum(batch)
                with self._hooked(step):
                    loss = self._losses(batch).sum()
                (loss / NOMINAL_TOKENS).backward()
                total, count = total + float(loss.detach()), count + int(batch[2].sum())
            losses.append(total)
            tokens.append(count)
        for parameter in self.model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            if scale != 1.0:
                parameter.grad = (gradient * scale).half().float() / scale
            if self.noise:
                wobble = torch.randn(gradient.shape, generator=self.generator)
                parameter.grad = parameter.grad * (1.0 + self.noise * wobble)
        return losses, tokens

    def _losses(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        dtype = _DTYPES[self.precision]
        weights = {name: value.to(dtype) for name, value in self.model.named_parameters()}
        found: Tensor = functional_call(self.model, weights, batch)
        return found.float()

    @torch.no_grad()
    def score(self, step: int, order: DataOrder) -> list[tuple[int, float]]:
        """Position and loss of each sample of a step's batch under the present weights."""
        found: list[float] = []
        for reader in self.readers:
            for batch in reader.micro_batches(step, order):
                found += [float(row.mean()) for row in self._losses(batch)]
        positions = order.positions(step, GLOBAL_BATCH)
        return [(int(position), loss) for position, loss in zip(positions, found, strict=True)]

    @contextmanager
    def _hooked(self, step: int) -> Iterator[None]:
        modules = dict(self.model.named_modules())
        handles = [modules[name].register_forward_hook(_times(gain)) for name, gain in self.breakage.gain(step).items()]
        handles += [
            modules[name].register_forward_hook(_swells(gain)) for name, gain in self.breakage.swell(step).items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def _finish(self, step: int, losses: list[float], tokens: list[int], lr: float) -> TraceRow:
        squares = [0.0] * len(self.names)
        bad = zeros = 0
        for index, parameter in zip(self.group_index, self.model.parameters(), strict=True):
            assert parameter.grad is not None
            square = float(torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)) ** 2
            bad += int((~torch.isfinite(parameter.grad)).sum()) if not math.isfinite(square) else 0
            squares[index] += square
            zeros += int((parameter.grad == 0.0).sum())
        loss = math.fsum(losses) / sum(tokens) if all(map(math.isfinite, losses)) else math.nan
        norm = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf
        bad += sum(not math.isfinite(value) for value in losses)
        groups = tuple(math.sqrt(value) if math.isfinite(value) else math.inf for value in squares)
        seen = Observation(step, loss, norm, bad, bool(bad) and self._poisoned(), sum(tokens), group_norms=groups)
        self.detector, self.verdict = judge(self.detector, seen, POLICY)
        update = 0.0
        if not bad and (self.verdict.kind.applies_update or self.verdict.kind is VerdictKind.INCIDENT):
            update = self._update(clip_factor(norm, min(CLIP_NORM, self.verdict.clip_to)), lr)
        row = TraceRow(
            step=step,
            loss=loss,
            grad_norm=norm,
            groups=groups,
            update_rms=update,
            nonfinite=bad,
            rank_losses=tuple(value / count for value, count in zip(losses, tokens, strict=True)),
            lr=lr,
            restored=self.restored,
            zero_share=zeros / self.elements,
            batch=self.batch,
        )
        self.restored = False
        return row

    def _poisoned(self) -> bool:
        """Whether a weight or a moment is not finite."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return not all(bool(torch.isfinite(value).all()) for value in (*self.model.parameters(), *moments))

    def _update(self, factor: float, lr: float) -> float:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad *= factor
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return self._update_rms()

    def _update_rms(self) -> float:
        """Root mean square of the update over its learning rate, without weight decay, from the moments."""
        total, count = 0.0, 0
        for group in self.optimizer.param_groups:
            first_rate, second_rate = group["betas"]
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                steps = float(state["step"])
                mean = state["exp_avg"] / (1 - first_rate**steps)
                spread = (state["exp_avg_sq"] / (1 - second_rate**steps)).sqrt() + group["eps"]
                total += float((mean / spread).double().square().sum())
                count += parameter.numel()
        return math.sqrt(total / count)


def _times(gain: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
    return lambda _module, _inputs, output: output * gain


class _Swell(torch.autograd.Function):
    """The identity, with a factor on the way back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gain: float) -> Tensor:
        ctx.gain = gain
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.gain, None


def _swells(gain: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
    return lambda _module, _inputs, output: _Swell.apply(output, gain)


def base_state(architecture: Architecture, source: DataSource, seed: int) -> tuple[Saved, list[TraceRow]]:
    """The state at step 200, and the last rows before it."""
    lab = Lab(architecture, source, seed)
    order = DataOrder(lab.samples, seed)
    rows = [lab.step(step, order=order) for step in range(BASE_STEP)]
    return lab.save(BASE_STEP), rows[-64:]
