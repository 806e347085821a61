"""The named values of a step row (`StepRow.values`): name, unit and meaning of each, in one table; pure.

A name that ends in `.*` stands for one value per layer group or per rule: `norm.*` is carried as `norm.blocks.0`,
`norm.embed` and so on. What a model or a precision does not have is absent from a row, and so is a sampled value
between two samples, except that a flagged row has its layer groups' norms; absent never means 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class StepValue:
    """One named value.

    Attributes:
        name: As in the row; ends in `.*` where there is one value per group.
        unit: Its unit.
        meaning: What it is, in one line.
        sampled: Whether only every k-th step has it; k is `sampling.every_steps`.
    """

    name: str
    unit: str
    meaning: str
    sampled: bool = False

    @property
    def grouped(self) -> bool:
        """Whether there is one value per layer group or rule."""
        return self.name.endswith(".*")


EVERY = ".*"

STEP_VALUES: tuple[StepValue, ...] = (
    # numbers of the step
    StepValue("norm.*", "gradient norm", "pre-clip gradient norm of a layer group", sampled=True),
    StepValue("norm.zero_share", "share", "share of gradient elements that are exactly 0", sampled=True),
    StepValue("clip.factor", "factor", "what the gradient was multiplied by to keep the norm limit; 1 is unclipped"),
    StepValue("clip.share", "share", "share of the last 100 updates that were clipped"),
    StepValue("nonfinite.gradients", "elements", "non-finite gradient elements (and losses) on all ranks"),
    StepValue("nonfinite.state", "elements", "non-finite weights and moments on all ranks, when they were counted"),
    StepValue("updates.skipped", "updates", "steps up to here that gave no update (dropped or empty)"),
    StepValue("loss.rank_spread", "nats", "largest minus smallest mean loss of a rank"),
    StepValue(
        "updates.overflowed", "ranks", "ranks whose optimizer refused the update before for its own overflow check"
    ),
    StepValue("loss_scale", "factor", "what the loss was multiplied by before backward, smallest of the ranks'"),
    # the state, sampled
    StepValue("accuracy.tokens", "share", "real tokens whose most likely prediction was the target", sampled=True),
    StepValue("update.rms", "x learning rate", "root mean square of Adam's last update before the rate", sampled=True),
    StepValue("update.rms.*", "x learning rate", "the same, of a layer group", sampled=True),
    StepValue("attention.max_logit", "logit", "largest attention logit of any layer", sampled=True),
    StepValue("attention.max_logit.*", "logit", "the same, of a layer group", sampled=True),
    StepValue("activation.max", "absolute value", "largest output of any layer group", sampled=True),
    StepValue("activation.max.*", "absolute value", "the same, of a layer group", sampled=True),
    # time
    StepValue("time.data_s", "s", "getting the batch, slowest rank"),
    StepValue("time.compute_s", "s", "forward and backward without waiting for other ranks, slowest rank"),
    StepValue("time.comm_s", "s", "waiting in collectives of forward and backward, longest of a rank"),
    StepValue("time.wait_s", "s", "waiting for the slowest rank in the vitals of the step before, longest of a rank"),
    StepValue("time.update_s", "s", "the optimizer step of the step before, slowest rank"),
    StepValue("time.vitals_s", "s", "vitals and verdict of the step before on the critical path, waiting left out"),
    StepValue("time.slowest_rank", "rank", "rank with the longest data and compute time of its own"),
    StepValue("time.slowest_ratio", "x median of the others", "how much longer that took than on the other ranks"),
    # what watches the step
    StepValue("sampling.every_steps", "steps", "steps between two samples, as the governor has it"),
    StepValue("sampling.share", "share", "running median of `time.vitals_s` over the step's time"),
    StepValue("detector.*", "of the rule", "severity of what a rule found at this step"),
    StepValue("rank.outlier_z", "robust sigma", "furthest deviation of a rank from its own share of loss or norm"),
    StepValue("rank.outlier", "rank", "the rank that it belongs to"),
    StepValue("spike.loss_z", "robust sigma", "the loss against its baseline", sampled=True),
    StepValue("spike.norm_ratio", "x median norm", "the gradient norm against its baseline", sampled=True),
    StepValue("forecast.lstm_z", "sigma of its band", "the newest judged loss against the LSTM's forecast"),
    StepValue("forecast.robust_z", "sigma of its band", "the same against the robust forecast"),
)
"""All of them, in the order in which a person reads them."""

RANK_VALUES: tuple[StepValue, ...] = (
    StepValue("loss", "nats", "mean loss over the rank's own tokens", sampled=True),
    StepValue("shard_norm", "gradient norm", "norm of the rank's shard of the gradient", sampled=True),
    StepValue("data_s", "s", "getting the batch", sampled=True),
    StepValue("compute_s", "s", "forward and backward without waiting for other ranks", sampled=True),
    StepValue("comm_s", "s", "waiting in collectives of forward and backward", sampled=True),
    StepValue("wait_s", "s", "waiting for the slowest rank in the vitals of the step before", sampled=True),
)
"""Names of `StepRow.ranks`: one number for each rank, in sampled rows."""

_BY_NAME: Mapping[str, StepValue] = MappingProxyType({value.name: value for value in STEP_VALUES})


def value_of(name: str) -> StepValue | None:
    """What is known about a name as rows carry it (`norm.blocks.0` is one of `norm.*`), or None."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    parts = name.split(".")
    families = (_BY_NAME.get(".".join(parts[:size]) + EVERY) for size in range(len(parts) - 1, 0, -1))
    return next((found for found in families if found is not None), None)
