"""Reading one rank's vitals from its engine, and naming the software that makes bits repeat."""

from __future__ import annotations

import math
import platform as machine

import torch

from stormsail.workers.engine import ZeroEngine
from stormsail.workers.vitals import RankVitals


def measure(
    engine: ZeroEngine,
    *,
    step: int,
    loss_sum: float,
    tokens: int,
    compute_s: float,
    data_s: float,
    stop: bool,
    batch: int,
) -> RankVitals:
    """This rank's vitals of the step, between backward and update."""
    squares, bad, first = 0.0, 0, -1
    for index, (_, gradient) in enumerate(engine.local_gradients()):
        square = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
        if not math.isfinite(square):
            bad += int((~torch.isfinite(gradient)).sum())
            first = index if first < 0 else first
        squares += square
    bad += not math.isfinite(loss_sum)
    return RankVitals(
        loss_sum=loss_sum,
        square_norm=squares,
        compute_s=compute_s,
        data_s=data_s,
        tokens=tokens,
        nonfinite_gradients=bad,
        nonfinite_state=count_nonfinite_state(engine) if bad else 0,
        first_parameter=first,
        stop=int(stop),
        step=step,
        batch=batch,
    )


def count_nonfinite_state(engine: ZeroEngine) -> int:
    """Non-finite elements in this rank's masters and moments."""
    return sum(int((~torch.isfinite(live)).sum()) for _, _, live in engine.live_buffers())


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
