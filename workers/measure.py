"""Reading one rank's vitals from its engine, and naming the software that makes bits repeat."""

from __future__ import annotations

import math
import platform as machine
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stormsail.workers.engine import ZeroEngine
from stormsail.workers.probes import StepProbe
from stormsail.workers.vitals import RankVitals, Times

# Beyond these a sum of squares in float32 overflows, or loses all that is small.
_LARGE, _SMALL = 1e18, 1e-15


@dataclass(frozen=True, slots=True)
class Sample:
    """The costly figures of a sampled step, as in `RankVitals`."""

    activations: tuple[float, ...]
    attention: tuple[float, ...]
    update_squares: tuple[float, ...]
    correct: int
    zeros: int


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a rank's shard of the gradient looks like.

    Attributes:
        squares: Sum of squares by layer group; not finite where an element is not.
        nonfinite: Elements that are not finite.
        first: Index of the first parameter with one, or -1.
    """

    squares: tuple[float, ...]
    nonfinite: int
    first: int


def measure(
    engine: ZeroEngine,
    *,
    step: int,
    loss_sum: float,
    tokens: int,
    batch: int,
    plan: int,
    stop: bool,
    times: Times,
    sample: Sample | None,
) -> RankVitals:
    """This rank's vitals of the step, between backward and update.

    Weights and moments are counted where something points to them: a gradient, a loss or a sampled update that is
    not finite.
    """
    gradients = measure_gradients(engine)
    bad = gradients.nonfinite + (not math.isfinite(loss_sum))
    poisoned = sample is not None and math.inf in sample.update_squares
    return RankVitals(
        loss_sum=loss_sum,
        squares=gradients.squares,
        tokens=tokens,
        nonfinite_gradients=bad,
        nonfinite_state=count_nonfinite_state(engine) if bad or poisoned else 0,
        first_parameter=gradients.first,
        own_bad=int(not engine.own_gradients_finite()),
        overflowed=int(engine.overflowed),
        loss_scale=engine.loss_scale,
        stop=int(stop),
        step=step,
        batch=batch,
        plan=plan,
        times=times,
        activations=sample.activations if sample else (),
        attention=sample.attention if sample else (),
        update_squares=sample.update_squares if sample else (),
        correct=sample.correct if sample else -1,
        zeros=sample.zeros if sample else -1,
    )


def measure_sample(engine: ZeroEngine, probe: StepProbe) -> Sample:
    """The costly figures: what the probe saw in forward, the last update, and gradients that are 0."""
    activations, attention, correct = probe.results()
    return Sample(activations, attention, update_squares(engine) or (), correct, count_zeros(engine))


def measure_gradients(engine: ZeroEngine) -> Gradients:
    """Look at this rank's shard of the gradient, between backward and update."""
    shards = [gradient for _, gradient in engine.local_gradients()]
    squares = [norm * norm for norm in _norms(shards)]
    bad, first = 0, -1
    for index, square in enumerate(squares):
        if not math.isfinite(square):
            bad += int((~torch.isfinite(shards[index])).sum())
            first = index if first < 0 else first
    return Gradients(tuple(engine.groups.sums(squares)), bad, first)


def _norms(shards: Sequence[torch.Tensor]) -> list[float]:
    """The norm of each shard: in float32, which is fast, and in float64 where float32 cannot hold it."""
    if not shards:
        return []
    norms: list[float] = torch.stack(torch._foreach_norm(list(shards))).tolist()  # noqa: SLF001 - as torch's clipping
    for index, norm in enumerate(norms):
        if norm and not _SMALL < norm < _LARGE:
            norms[index] = float(torch.linalg.vector_norm(shards[index], dtype=torch.float64))
    return norms


def count_zeros(engine: ZeroEngine) -> int:
    """Elements of this rank's gradient shard that are exactly 0."""
    return sum(gradient.numel() - int(torch.count_nonzero(gradient)) for _, gradient in engine.local_gradients())


def count_nonfinite_state(engine: ZeroEngine) -> int:
    """Non-finite elements in this rank's masters and moments."""
    return sum(int((~torch.isfinite(live)).sum()) for _, _, live in engine.live_buffers())


def update_squares(engine: ZeroEngine) -> tuple[float, ...] | None:
    """Sum of squares of Adam's last update before the learning rate, by layer group; None if the optimizer is no Adam.

    The update is m / (1 - beta1^t) over sqrt(v / (1 - beta2^t)) + epsilon, from the moments as they are; infinite
    where a moment is not finite. Its root mean square is about 1 where gradients agree and falls as they disagree; a
    rise beyond that says that v lags behind.
    """
    moments = engine.adam_moments()
    if moments is None:
        return None
    squares = []
    for first, second, epsilon, correction in moments:
        update = first / second.sqrt().add_(epsilon)
        square = (float(torch.linalg.vector_norm(update)) * correction) ** 2 if update.numel() else 0.0
        # An infinite second moment makes an update of 0, so it is looked at by itself.
        whole = math.isfinite(square) and (not second.numel() or math.isfinite(float(second.max())))
        squares.append(square if whole else math.inf)
    return tuple(engine.groups.sums(squares))


def software() -> dict[str, str]:
    """Versions and processor type: the conditions under which a state continues bit for bit."""
    import deepspeed

    return {
        "torch": str(torch.__version__),
        "deepspeed": str(deepspeed.__version__),
        "python": machine.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "machine": machine.machine(),
    }
