"""Rows whose loss or gradient norm is no number. Pure.

A live run drops such an update at once. Seen in a log, the first is a watch, and a few in a row are an incident: one
real job went on for 16,000 steps after its first NaN. So are many of the last rows, though never two in a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from stormsail.workers.detect.nonfinite import Lately
from stormsail.workers.detect.rules.row import Finding, Kind, Level, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit


@dataclass(frozen=True, slots=True)
class NonfiniteState:
    """Rows in a row with a loss, and with a norm, that is no number; and how many of the last rows had either."""

    losses: int = 0
    norms: int = 0
    lately: Lately = field(default_factory=Lately)


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
    share: float = limit(0.3, "of the last 20 or so rows", "a larger share is an incident too, from the tenth on")

    def _observe(self, state: NonfiniteState, row: Row) -> tuple[NonfiniteState, Finding | None]:
        if row.finite:
            return NonfiniteState(lately=state.lately.good()), None
        lately = state.lately.bad(row.step)
        if math.isfinite(row.loss) and row.loss != 0.0:  # a loss of exactly 0 is how Hugging Face logs one that is NaN
            after = NonfiniteState(0, state.norms + 1, lately)
            patience = self.norm_patience if row.stride < 10 else self.coarse_norm_patience  # noqa: PLR2004 - steps
            return after, self._finding(after.norms, patience, "gradient norm", lately)
        after = NonfiniteState(state.losses + 1, state.norms, lately)
        patience = self.patience if row.stride == 1 else self.coarse_patience
        return after, self._finding(after.losses, patience, "loss", lately)

    def _finding(self, rows: int, patience: int, what: str, lately: Lately) -> Finding:
        in_row, often = rows >= patience, lately.too_many(self.share, patience)
        counted = f"{rows} in a row (limit {patience})"
        if often and not in_row:
            counted = f"{lately.share:.0%} of the last 20 or so rows (limit {self.share:.0%})"
        level = Level.INCIDENT if in_row or often else Level.WATCH
        return self.say(float(rows), f"{what} is not finite, {counted}", level)
