"""One ZeRO-3 engine: compute, gradients and state of this rank, with nothing of DeepSpeed showing outside.

The engine holds no policy: it neither clips, nor schedules, nor judges. All methods are called from the
training thread; those marked *collective* must be called by all ranks in the same order.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from stormsail.platform.checkpoint.rounding import round_shard
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import micro_steps
from stormsail.platform.errors import ConfigError, StateMismatchError
from stormsail.workers import deepspeed_private, factories, lean_imports, optimizer_states
from stormsail.workers.buffers import as_it_was, buffer_sums
from stormsail.workers.layer_groups import LayerGroups
from stormsail.workers.probes import StepProbe
from stormsail.workers.seeding import seed_all

MASTER = "master"
Bits: TypeAlias = NDArray[np.uint16]
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class LocalPiece:
    """The part of one parameter that this rank owns.

    Attributes:
        name: Parameter name in the module.
        shape: Global shape.
        start: First flat element of the parameter that lies here.
        count: Elements that lie here; padding at the end of the last partition is not counted.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    count: int

    def spec(self, component: str) -> ShardSpec:
        """These elements of one of the parameter's components."""
        return ShardSpec(self.name, component, self.shape, self.start, self.count)


class ZeroEngine:
    """A DeepSpeed ZeRO-3 engine around a model, in one compute precision.

    Args:
        config: The run.
        precision: `bf16` or `fp32`; masters and moments are fp32 either way.
        rank: This rank.
        world_size: Ranks in the group.
        device: Where the compute happens.
    """

    def __init__(self, config: RunConfig, *, precision: str, rank: int, world_size: int, device: torch.device) -> None:
        import deepspeed

        deepspeed_private.reset_counters()
        seed_all(config.seed)  # every rank builds the same initial weights, whatever the factory draws from
        module = factories.build_model(config.model)
        optimizer = factories.build_optimizer(config.optimizer, list(module.named_parameters()))
        with lean_imports.kernels_at_first_use():
            self._engine: Any = deepspeed.initialize(
                model=module,
                optimizer=optimizer,
                config=_deepspeed_config(config, precision, world_size, parameters=_count(module)),
                dist_init_required=False,
            )[0]
        self.precision = precision
        self.device = device
        self._parameters = [(name, p) for name, p in self._engine.module.named_parameters() if p.requires_grad]
        self.pieces = tuple(_piece(name, p, rank) for name, p in self._parameters)
        self._can_be_saved = False
        self._built_buffers = buffer_sums(self.module)
        self._gradients: list[torch.Tensor] = []
        self.groups = LayerGroups.of([piece.name for piece in self.pieces])
        self.group_elements = self.groups.sums([math.prod(piece.shape) for piece in self.pieces])
        self._waited = deepspeed_private.time_collectives()
        self._own_gradients = deepspeed_private.OwnGradients(self._engine.optimizer)
        self._base_rates = [float(group["lr"]) / config.optimizer.lr for group in self._inner.param_groups]

    @property
    def _inner(self) -> torch.optim.Optimizer:
        inner: torch.optim.Optimizer = self._engine.optimizer.optimizer
        return inner

    @property
    def module(self) -> nn.Module:
        """The user's model, parameters partitioned."""
        module: nn.Module = self._engine.module
        return module

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype that the forward pass really runs in, read from the parameters."""
        dtype: torch.dtype = self._parameters[0][1].ds_tensor.dtype
        return dtype

    @property
    def loss_scale(self) -> float:
        """What DeepSpeed multiplies the loss by before backward, read from it; 1 in bf16 and fp32."""
        return deepspeed_private.loss_scale(self._engine)

    @property
    def overflowed(self) -> bool:
        """Whether DeepSpeed's own check for overflow has refused the last update."""
        return deepspeed_private.refused(self._engine)

    # ------------------------------------------------------------------ compute

    def forward_backward(
        self, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scale: float, *, last: bool
    ) -> float:
        """Run one micro-batch and add its gradient (collective).

        Args:
            batch: tokens, targets (int64, `[B, T]`) and mask (float32, `[B, T]`; 0 leaves a token out).
            scale: Multiplies the summed loss before the backward pass.
            last: Whether this is the last micro-batch of the step.

        Returns:
            The summed loss over the real tokens of the micro-batch, in nats.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        tokens, targets, mask = (part.to(self.device) for part in batch)
        losses = factories.call_model(self._engine, tokens, targets, mask)
        total = (losses.float() * mask).sum()
        self._engine.backward(total * scale, scale_wrt_gas=False)
        return float(total.detach())

    def probe(self) -> StepProbe:
        """A look into the forward passes of one step; enter it around them."""
        return StepProbe(self.module, self.groups.names)

    def waited_s(self) -> float:
        """Seconds spent waiting in DeepSpeed's collectives since the last call; on GPUs, as far as the host waits."""
        return self._waited.take()

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it, so that times mean something."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def losses(self, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The loss of each token, 0 where the mask is, without learning from it (collective).

        Args:
            batch: As in `forward_backward`.
        """
        tokens, targets, mask = (part.to(self.device) for part in batch)
        with as_it_was(self._engine):
            self._engine.eval()
            return (factories.call_model(self._engine, tokens, targets, mask).float() * mask).cpu()

    def changed_buffers(self) -> list[str]:
        """Names of the buffers of the model's state that are not what they were when it was built; no checkpoint has any."""
        now = buffer_sums(self.module)
        return [name for name, built in self._built_buffers.items() if now.get(name) != built]

    def local_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's shard of the reduced gradient, parameter by parameter: fp32, flat, without padding."""
        for (name, _), gradient in zip(self._parameters, self._gradient_views(), strict=True):
            yield name, gradient

    def _gradient_views(self) -> list[torch.Tensor]:
        """The shards as they lie in DeepSpeed's buffer; asking for each of them at each step would cost more than reading.

        With offloading DeepSpeed gives copies instead of views. A copy lies elsewhere each time, and is asked for anew.
        """
        from deepspeed.utils import safe_get_local_grad

        first = safe_get_local_grad(self._parameters[0][1])
        if not self._gradients or self._gradients[0].data_ptr() != first.data_ptr():
            self._gradients = [
                safe_get_local_grad(parameter).view(-1)[: piece.count]
                for (_, parameter), piece in zip(self._parameters, self.pieces, strict=True)
            ]
        return self._gradients

    def own_gradients_finite(self) -> bool:
        """Whether what this rank computed since the last call was finite, before the ranks' gradients were summed up.

        A sum that overflows counts as not finite, so this says whose a bad gradient is, not whether there is one.
        """
        return self._own_gradients.take()

    def looked_s(self) -> float:
        """Seconds that looking at them has taken since the last call."""
        return self._own_gradients.took_s()

    def scale_gradients(self, factor: float) -> None:
        """Multiply this rank's gradient shard in place."""
        from deepspeed.utils import safe_get_local_grad, safe_set_local_grad

        for _, parameter in self._parameters:
            safe_set_local_grad(parameter, safe_get_local_grad(parameter) * factor)

    def round_gradients(self) -> None:
        """Round this rank's gradient shard to bf16 in place; what holds it stays fp32."""
        from deepspeed.utils import safe_get_local_grad, safe_set_local_grad

        for _, parameter in self._parameters:
            safe_set_local_grad(parameter, safe_get_local_grad(parameter).bfloat16().float())

    def gradient_bits(self) -> Bits:
        """This rank's gradient shard as bf16, parameter after parameter, copied to host memory.

        Exact only for a gradient that was rounded.
        """
        parts = [gradient.bfloat16().view(torch.int16) for _, gradient in self.local_gradients()]
        return torch.cat(parts).to("cpu", copy=True).numpy().view(np.uint16)

    def write_gradient(self, bits: Bits) -> None:
        """Put a gradient shard where a backward pass would have left it; `apply` may follow.

        Args:
            bits: As `gradient_bits` returned them.

        Raises:
            StateMismatchError: They are more or fewer than this rank owns.
        """
        from deepspeed.utils import safe_set_local_grad

        if bits.size != sum(piece.count for piece in self.pieces):
            raise StateMismatchError(f"a gradient of {bits.size} elements does not fit this rank's shard")
        deepspeed_private.offer_gradients(self._engine)
        values = torch.from_numpy(bits.view(np.int16)).to(self.device).view(torch.bfloat16).float()
        done = 0
        for (_, parameter), piece in zip(self._parameters, self.pieces, strict=True):
            whole = values.new_zeros(parameter.ds_tensor.numel())
            whole[: piece.count] = values[done : done + piece.count]
            safe_set_local_grad(parameter, whole)
            done += piece.count

    def spoil_gradient(self, value: float) -> None:
        """Write `value` into the first element of this rank's gradient shard (drills only)."""
        from deepspeed.utils import safe_get_local_grad, safe_set_local_grad

        parameter = next(p for (_, p), piece in zip(self._parameters, self.pieces, strict=True) if piece.count)
        gradient = safe_get_local_grad(parameter).clone()
        gradient.view(-1)[0] = value
        safe_set_local_grad(parameter, gradient)

    def spoil_backward(self, where: Literal["gradient", "loss"]) -> RemovableHandle:
        """Make this rank's passes give NaN until the handle is removed (drills only).

        Args:
            where: `gradient`: in one element of what this rank computes itself; `loss`: in the loss of each token.
        """
        if where == "loss":
            return self.module.register_forward_hook(lambda _module, _args, losses: losses * math.nan)
        first: Any = self._parameters[0][1]
        handle: RemovableHandle = first.register_hook(_with_nan)
        return handle

    def set_learning_rate(self, lr: float) -> float:
        """Set every group's rate (times the group's own ratio) and return what the first group now holds."""
        for group, ratio in zip(self._inner.param_groups, self._base_rates, strict=True):
            group["lr"] = lr * ratio
        return float(self._inner.param_groups[0]["lr"]) / self._base_rates[0]

    def learning_rates(self) -> list[float]:
        """What every group of the optimizer holds now."""
        return [float(group["lr"]) for group in self._inner.param_groups]

    def restore_learning_rates(self, rates: tuple[float, ...]) -> None:
        """Give the groups the rates that `learning_rates` said."""
        for group, rate in zip(self._inner.param_groups, rates, strict=True):
            group["lr"] = rate

    def apply(self) -> bool:
        """Take the optimizer step (collective). Returns whether DeepSpeed really applied it."""
        self._engine.step()
        applied = bool(self._engine.was_step_applied())
        if applied and not self._can_be_saved:
            self._check_optimizer()
        return applied

    def _check_optimizer(self) -> None:
        """After its first step an optimizer shows what state it keeps; better now than at the first checkpoint."""
        states = deepspeed_private.optimizer_states(self._engine)
        found = optimizer_states.problem(states, deepspeed_private.flat_sizes(self._engine))
        if found:
            raise ConfigError(
                f"the optimizer's state cannot be kept in checkpoints: {found}",
                where="optimizer.factory",
                todo="use one whose state is fp32 and shaped like the parameters (AdamW, SGD, Lion); 8-bit and "
                "factored states cannot be cut over any number of workers",
            )
        self._can_be_saved = True

    def drop(self) -> None:
        """Throw the gradient of this step away; weights, moments and Adam's step stay as they are."""
        self._engine.optimizer.zero_grad()
        self._engine.zero_grad()

    # -------------------------------------------------------------------- state

    def live_buffers(self) -> Iterator[tuple[LocalPiece, str, torch.Tensor]]:
        """Every live fp32 state tensor of this rank as (piece, component, flat tensor), in a fixed order."""
        from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

        components = self._tensor_components()
        for (_, parameter), piece in zip(self._parameters, self.pieces, strict=True):
            yield piece, MASTER, safe_get_local_fp32_param(parameter).view(-1)[: piece.count]
            for component in components:
                yield piece, component, safe_get_local_optimizer_state(parameter, component).view(-1)[: piece.count]

    def state_sum(self) -> int:
        """Sum modulo 2^64 of the 64-bit words of this rank's live state, tensor by tensor, taken where it lies."""
        total = torch.zeros((), dtype=torch.int64, device=self.device)
        for _, _, live in self.live_buffers():
            total += _word_sum(live)
        return int(total) % 2**64

    def adam_moments(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, float, float]] | None:
        """Adam's memory of this rank's shard, parameter by parameter; None if the optimizer has none (yet).

        Yields:
            First and second moment (flat), epsilon on the scale of the second moment's root, and the factor that
            turns their ratio into the update before the learning rate: both follow from Adam's step.
        """
        inner = self._inner
        group = inner.param_groups[0]
        steps = deepspeed_private.adam_steps(self._engine)
        if not steps or not {"betas", "eps"} <= group.keys():
            return None
        first, second = (1.0 - float(beta) ** steps for beta in group["betas"])
        return self._moments(float(group["eps"]) * second**0.5, second**0.5 / first)

    def _moments(self, epsilon: float, correction: float) -> Iterator[tuple[torch.Tensor, torch.Tensor, float, float]]:
        from deepspeed.utils import safe_get_local_optimizer_state

        for (_, parameter), piece in zip(self._parameters, self.pieces, strict=True):
            moments = (
                safe_get_local_optimizer_state(parameter, name).view(-1)[: piece.count]
                for name in ("exp_avg", "exp_avg_sq")
            )
            yield *moments, epsilon, correction

    def copy_state(self) -> list[Shard]:
        """This rank's whole state, copied to host memory."""
        return [
            Shard(piece.spec(component), live.detach().to("cpu", copy=True).numpy())
            for piece, component, live in self.live_buffers()
            if piece.count
        ]

    def state_specs(self) -> list[ShardSpec]:
        """What `write_state` wants, in its order."""
        components = (MASTER, *self._tensor_components())
        return [piece.spec(component) for piece in self.pieces if piece.count for component in components]

    def write_state(self, shards: list[Shard], scalars: dict[str, list[float]]) -> None:
        """Replace this rank's whole state in place (collective): masters, moments, compute copies, scalars.

        Args:
            shards: Exactly the shards that `state_specs` names.
            scalars: As `optimizer_scalars` returned them.

        Raises:
            StateMismatchError: The shards are not those of this engine; nothing was changed.
        """
        from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

        given = {(shard.spec.name, shard.spec.component): shard for shard in shards}
        wanted = {(spec.name, spec.component): spec for spec in self.state_specs()}
        if {key: shard.spec for key, shard in given.items()} != wanted:
            raise StateMismatchError(
                f"the state does not fit this model: {sorted(set(given) ^ set(wanted))[:4] or 'other shapes'}",
                todo="resume with the configuration that the checkpoint was made with",
            )
        for (name, parameter), piece in zip(self._parameters, self.pieces, strict=True):
            size = parameter.ds_tensor.numel()
            master = _padded(given.get((name, MASTER)), size)
            safe_set_local_fp32_param(parameter, master.to(self.device))
            # The setter leaves the compute copy stale, and the next forward would use the old weights.
            parameter.ds_tensor.data.view(-1).copy_(master)
            for component in self._tensor_components():
                moment = _padded(given.get((name, component)) if piece.count else None, size)
                safe_set_local_optimizer_state(parameter, moment.to(self.device), component)
        self._write_scalars(scalars)
        deepspeed_private.refresh_compute_copies(self._engine)
        self.drop()

    def round_state(self) -> None:
        """Round masters and moments in place, as rounding mode does at a checkpoint step (collective).

        By the way that a restore takes, so that going on from here and going on from the checkpoint are the same.
        """
        self.write_state([round_shard(shard) for shard in self.copy_state()], self.optimizer_scalars())

    def optimizer_scalars(self) -> dict[str, list[float]]:
        """The optimizer's state that is not shaped like a parameter (Adam's step), one value for each flat group."""
        states = deepspeed_private.optimizer_states(self._engine)
        names = [key for key, value in states[0].items() if not _is_tensor_state(value)]
        return {name: [float(state[name]) for state in states] for name in names}

    def _write_scalars(self, scalars: dict[str, list[float]]) -> None:
        for index, state in enumerate(deepspeed_private.optimizer_states(self._engine)):
            for name, values in scalars.items():
                # The number of flat groups can differ at another world size; Adam's step is the same in all.
                value = values[min(index, len(values) - 1)]
                old = state[name]
                state[name] = torch.full_like(old, value) if torch.is_tensor(old) else type(old)(value)

    def _tensor_components(self) -> tuple[str, ...]:
        first = deepspeed_private.optimizer_states(self._engine)[0]
        return tuple(sorted(key for key, value in first.items() if _is_tensor_state(value)))

    def destroy(self) -> None:
        """Free the engine; a new one can then be built in this process."""
        self._engine.destroy()
        self._parameters, self._gradients = [], []
        self._engine = None
        gc.collect()  # DeepSpeed's hooks form cycles that would keep the old parameters alive


def _deepspeed_config(config: RunConfig, precision: str, world_size: int, *, parameters: int) -> dict[str, Any]:
    steps = micro_steps(config.train.global_batch, world_size, config.train.micro_batch)
    return {
        "train_batch_size": config.train.micro_batch * steps * world_size,
        "train_micro_batch_size_per_gpu": config.train.micro_batch,
        "gradient_accumulation_steps": steps,
        # DeepSpeed's own bucket holds 500 million elements, whatever the model's size.
        "zero_optimization": {"stage": 3, "reduce_bucket_size": min(500_000_000, parameters)},
        "bf16": {"enabled": precision == "bf16"},
        # Gradients of micro-batches add up in fp32; DeepSpeed's default would be bf16.
        "data_types": {"grad_accum_dtype": "fp32"},
        "gradient_clipping": 0.0,  # the loop clips, so that gradients are read once
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }


def _with_nan(gradient: torch.Tensor) -> torch.Tensor:
    spoilt = gradient.clone()
    spoilt.view(-1)[0] = math.nan
    return spoilt


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _piece(name: str, parameter: Any, rank: int) -> LocalPiece:
    total = int(parameter.ds_numel)
    size = int(parameter.ds_tensor.numel())
    start = min(rank * size, total)
    return LocalPiece(name, tuple(parameter.ds_shape), start, max(0, min(size, total - start)))


def _word_sum(live: torch.Tensor) -> torch.Tensor:
    """Wide words are summed six times as fast; a shard that begins between two of them is copied first."""
    words = live if live.storage_offset() % 2 == 0 else live.clone()
    paired = words.numel() // 2 * 2
    total = words[:paired].view(torch.int64).sum()
    return total + words[paired:].view(torch.int32).sum(dtype=torch.int64)


def _padded(shard: Shard | None, size: int) -> torch.Tensor:
    """A partition's elements; where there is nothing to pad, they are not copied."""
    if shard is not None and shard.spec.count == size:
        return torch.from_numpy(shard.values.view(np.float32))
    flat = np.zeros(size, dtype=np.float32)
    if shard is not None:
        flat[: shard.spec.count] = shard.values.view(np.float32)
    return torch.from_numpy(flat)


def _is_tensor_state(value: object) -> bool:
    return torch.is_tensor(value) and value.dim() > 0
