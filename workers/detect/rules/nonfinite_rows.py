"""Rows whose loss or gradient norm is no number. Pure.

A live run drops such an update at once. Seen in a log, the first is a watch, and a few in a row are an incident: one
real job went on for 16,000 steps after its first NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count


@dataclass(frozen=True, slots=True)
class NonfiniteState:
    """Rows in a row with a loss, and with a norm, that is no number."""

    losses: int = 0
    norms: int = 0


@dataclass(frozen=True)
class NonfiniteRows(Rule[NonfiniteState]):
    """NaN or infinity in the loss, or for long in the norm.

    A norm alone may overflow for some steps while an FP16 loss scale settles, so it gets more patience.
    """

    state_type: ClassVar[type[object]] = NonfiniteState
    name: ClassVar[str] = "nonfinite"
    kind: ClassVar[Kind] = Kind.NONFINITE
    unit: ClassVar[str] = "rows in a row"
    source: ClassVar[str] = "Stormsail"

    patience: int = count(3, "rows in a row", "non-finite losses that make an incident")
    coarse_patience: int = count(2, "rows in a row", "the same where not every step is logged")
    norm_patience: int = count(20, "rows in a row", "non-finite norms beside finite losses that make an incident")
    coarse_norm_patience: int = count(3, "rows in a row", "the same for rows ten or more steps apart")

    def _observe(self, state: NonfiniteState, row: Row) -> tuple[NonfiniteState, Finding | None]:
        if row.finite:
            return NonfiniteState(), None
        if math.isfinite(row.loss) and row.loss != 0.0:  # a loss of exactly 0 is how Hugging Face logs one that is NaN
            after = NonfiniteState(0, state.norms + 1)
            patience = self.norm_patience if row.stride < 10 else self.coarse_norm_patience  # noqa: PLR2004 - steps
            return after, self._finding(after.norms, patience, "gradient norm")
        after = NonfiniteState(state.losses + 1, state.norms)
        return after, self._finding(after.losses, self.patience if row.stride == 1 else self.coarse_patience, "loss")

    def _finding(self, rows: int, patience: int, what: str) -> Finding:
        level = Level.INCIDENT if rows >= patience else Level.WATCH
        return self.say(float(rows), f"{what} is not finite, {rows} in a row (limit {patience})", level)
