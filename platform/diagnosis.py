"""What a diagnosis is made of: the trace of an incident, the plan of a replay, its outcome, the verdict. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stormsail.platform.messages import CheckpointRef


class Cause(StrEnum):
    """Why the numbers went wrong."""

    EXPLOSION = "gradient_explosion"
    DATA = "toxic_data"
    OSCILLATION = "optimizer_oscillation"
    ARCHITECTURE = "architectural"
    NUMERICS = "numerics"
    RESUME = "resume_fault"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"


class Sign(StrEnum):
    """One way in which a step differs from the calm ones before it."""

    NONFINITE = "nonfinite"
    LOSS = "loss"
    LOSS_LOW = "loss_low"
    NORM = "norm"
    UPDATE = "update"
    DEAD = "dead_layer"
    RATE = "learning_rate"


class Variant(StrEnum):
    """What a replay changes; in the order in which they are tried, cheapest first."""

    SAME = "same_again"
    WITHOUT_SUSPECTS = "without_suspects"
    SMALLER_LR = "smaller_lr"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One step as a diagnosis sees it; the same bits on all ranks.

    Attributes:
        step: Global batch (0-based).
        loss: Token-weighted mean over all ranks, in nats; may be non-finite.
        grad_norm: Global norm before clipping; may be non-finite.
        groups: Gradient norm of each layer group, in the order of the trace's group names; () where it is not known.
        update_rms: Root mean square of the optimizer's update divided by its learning rate; 0 where there was none.
        nonfinite: Non-finite gradient elements on all ranks.
        bad_rank: First rank with a non-finite value, or -1.
        rank_losses: Mean loss of each rank's own tokens, in nats.
        lr: Learning rate that the optimizer used (planned, where the update was dropped).
        restored: Whether this was the first step after a state had been loaded.
        zero_share: Share of gradient elements that are exactly 0; -1 where it was not measured.
        batch: Digest of the global batch's tokens; 0 where it is not known.
    """

    step: int
    loss: float
    grad_norm: float
    groups: tuple[float, ...] = ()
    update_rms: float = 0.0
    nonfinite: int = 0
    bad_rank: int = -1
    rank_losses: tuple[float, ...] = ()
    lr: float = 0.0
    restored: bool = False
    zero_share: float = -1.0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """The last steps before and at an incident, oldest first.

    Attributes:
        names: Layer groups from the input of the model to its output.
        rows: One for each step.
    """

    names: tuple[str, ...] = ()
    rows: tuple[TraceRow, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """An experiment on the steps of an incident.

    Attributes:
        restore: Committed state that it starts from (None: the initial state).
        start: Step of that state.
        window: First step of the window, and the one after its last.
        calm: Rows from before the onset, oldest first.
        recorded: Rows from the onset's window on, as they were seen.
        onset: First abnormal step; -1 where none is known and the window is only searched for bits that differ.
        exact: Whether the same steps must give the same bits.
        budget_steps: Steps that may be computed in all; three forward passes alone count as one.
    """

    restore: CheckpointRef | None
    start: int
    window: tuple[int, int]
    calm: tuple[TraceRow, ...]
    recorded: tuple[TraceRow, ...]
    onset: int
    exact: bool = True
    budget_steps: int = 50


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The loss of one sample under the weights from before the incident.

    Attributes:
        step: Step that consumed it.
        position: Its place in the data order.
        loss: Mean over its tokens, in nats.
    """

    step: int
    position: int
    loss: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one variant gave.

    Attributes:
        variant: Which.
        rows: Its steps, from the window's first on.
        expected: What the same batches cost under the weights from before the window, by row, in nats.
        finished: Whether it ran to the window's end; if not, it was clear before.
    """

    variant: Variant
    rows: tuple[TraceRow, ...]
    expected: tuple[float, ...]
    finished: bool


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """All that a replay has shown.

    Attributes:
        prefix: The steps from the loaded state to the window, computed again.
        outcomes: Variants in the order in which they ran; `SAME` comes twice if it did not repeat the incident.
        scores: Losses of the window's samples, and of calm ones before it.
        suspects: Sample positions [start, stop) that stand out among them.
        steps: Steps computed in all.
        problem: Why there is no result, or "".
        broken: Whether an error ended it, which says nothing about the incident.
        names: Layer groups of its rows, from the model's input to its output.
    """

    prefix: tuple[TraceRow, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    scores: tuple[SampleScore, ...] = ()
    suspects: tuple[tuple[int, int], ...] = ()
    steps: int = 0
    problem: str = ""
    broken: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on an incident.

    Attributes:
        cause: What it was, or unknown.
        confidence: 0 to 1; below `CONFIDENT` the ladder goes its usual way.
        evidence: What speaks for it, one line each, strongest first.
        onset: First abnormal step, or -1.
        layers: Layer groups in front.
        ranks: Ranks suspected.
        steps: Steps whose batches are suspected.
        suspects: Their sample positions [start, stop).
    """

    cause: Cause
    confidence: float
    evidence: tuple[str, ...] = ()
    onset: int = -1
    layers: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    suspects: tuple[tuple[int, int], ...] = ()

    @property
    def confident(self) -> bool:
        """Whether the ladder may go by it."""
        return self.cause is not Cause.UNKNOWN and self.confidence >= CONFIDENT


CONFIDENT = 0.7


def spoken(cause: str, confidence: float) -> str:
    """A verdict in a few words; one that is only a hint says so. `unknown` is no more or less sure."""
    words = cause.replace("_", " ")
    if cause == Cause.UNKNOWN:
        return words
    return f"{'' if confidence >= CONFIDENT else 'likely '}{words} ({confidence:.0%} sure)"
