"""How many steps lie between two keyframes when every step's gradient is logged; pure.

With a keyframe of B bytes, a log of g bytes a step and one failure in F steps, N steps between two keyframes move
`g + B/N + (B + g N/2) / F` bytes a step: what is written, and what a failure has to read back. The least of it lies at
`N = sqrt(2 B F / g)`.
"""

from __future__ import annotations

import math

# As measured by benchmarks/checkpoint.py on the quickstart's model at step 480: 9.81, and 4.95 in rounding mode.
KEYFRAME_BYTES_PER_PARAMETER = 9.9
ROUNDED_BYTES_PER_PARAMETER = 4.95
LOG_BYTES_PER_PARAMETER = 1.35


def bytes_per_step(interval: float, *, keyframe_bytes: float, log_bytes: float, steps_per_failure: float) -> float:
    """Bytes moved per step, reading after failures included, at `interval` steps between two keyframes."""
    read_back = keyframe_bytes + log_bytes * interval / 2
    return log_bytes + keyframe_bytes / interval + read_back / steps_per_failure


def best_interval(*, keyframe_bytes: float, log_bytes: float, steps_per_failure: float) -> int:
    """The number of steps (at least 1) that moves the fewest bytes; units of bytes cancel out."""
    exact = math.sqrt(2.0 * keyframe_bytes * steps_per_failure / log_bytes)
    below = max(1, math.floor(exact))
    least, more = (
        bytes_per_step(steps, keyframe_bytes=keyframe_bytes, log_bytes=log_bytes, steps_per_failure=steps_per_failure)
        for steps in (below, below + 1)
    )
    return below if least <= more else below + 1
