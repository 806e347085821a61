"""Whether a resumed run continues the one before: the first losses after a load must come again.

Restored checkpoints that were not what they seemed have trained on silently elsewhere; the first forward passes
tell, because their losses were recorded before.
"""

from __future__ import annotations

import math

from stormsail.workers.detect.beside import Continuity as Limits


class Continuity:
    """Compares the first losses after a restore with what was recorded for the same steps.

    Args:
        expected: (step, loss) pairs.
        exact: Whether the losses must agree to the last bit rather than within the tolerance.
        limits: How far they may differ where bits need not agree.
    """

    def __init__(self, expected: tuple[tuple[int, float], ...], *, exact: bool, limits: Limits) -> None:
        self._tolerance = limits.tolerance
        self._expected = dict(expected)
        self._exact = exact
        self.broken = ""

    def check(self, step: int, loss: float) -> str:
        """What is wrong with this loss, or ""; steps that nothing is known about are never wrong."""
        wanted = self._expected.pop(step, None)
        if wanted is None or not math.isfinite(loss):
            return ""
        agrees = loss == wanted if self._exact else math.isclose(loss, wanted, rel_tol=self._tolerance)
        if not agrees:
            self._expected.clear()
            self.broken = (
                f"the loss at step {step} after the restore is {loss!r}, recorded was {wanted!r}: "
                "the restored state is not the one that was saved"
            )
        return self.broken if not agrees else ""
