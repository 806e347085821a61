"""One row of a training curve, and what a rule says about it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much an alarm may cost.

    `WATCH` is worth a line and, in a live run, something reversible (clip or skip one update); `INCIDENT` is worth
    a rollback, so it must be rare.
    """

    WATCH = "watch"
    INCIDENT = "incident"

    @property
    def rank(self) -> int:
        """0 for watch, 1 for incident: levels compare by this."""
        return list(Level).index(self)


class Kind(StrEnum):
    """What a rule thinks it sees."""

    NONFINITE = "nonfinite"
    SPIKE = "spike"
    GRADIENT = "gradient"
    DIVERGENCE = "divergence"
    LEVEL_SHIFT = "level_shift"
    OSCILLATION = "oscillation"
    RESUME_FAULT = "resume_fault"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Row:
    """One logged row.

    Attributes:
        step: Its step, as the log counts.
        loss: In nats; may be non-finite.
        grad_norm: Global gradient norm before clipping, may be non-finite; None where the log has none.
        stride: Steps between rows here (1: every step is logged).
        restart: The run was started anew just before this row.
    """

    step: int
    loss: float
    grad_norm: float | None = None
    stride: int = 1
    restart: bool = False

    @property
    def finite(self) -> bool:
        """Whether the loss, and the norm where there is one, are numbers."""
        return math.isfinite(self.loss) and (self.grad_norm is None or math.isfinite(self.grad_norm))

    @property
    def log_norm(self) -> float | None:
        """Natural logarithm of the norm; None where it is missing, not finite or not above 0."""
        norm = self.grad_norm
        if norm is None or not math.isfinite(norm) or norm <= 0.0:
            return None
        return math.log(norm)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says about one row.

    Attributes:
        level: How much it may cost.
        kind: What it looks like.
        severity: In the rule's own unit; always finite.
        reason: Why, in one line, with the figures and their limits.
        onset: First step that belongs to it, as far as the rule knows; None: the row's own.
        normal: What the gradient norm usually is, where the finding is about that.
    """

    level: Level
    kind: Kind
    severity: float
    reason: str
    onset: int | None = None
    normal: float | None = None
