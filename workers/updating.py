"""The end of a step that was not an incident: the learning rate, the clip, the optimizer's step, or none of them."""

from __future__ import annotations

from dataclasses import dataclass

from stormsail.platform.checkpoint.log_entry import Outcome
from stormsail.platform.errors import InternalError
from stormsail.workers.clip import clip_factor
from stormsail.workers.detect.verdict import VerdictKind
from stormsail.workers.gradient_log import GradientLog
from stormsail.workers.inject import Injector
from stormsail.workers.schedule import lr_factor, scheduled_lr
from stormsail.workers.session import Session
from stormsail.workers.vitals import Vitals, token_correction

APPLIED: Outcome = "applied"
_OUTCOMES: dict[VerdictKind, Outcome] = {
    VerdictKind.DROP: "dropped",
    VerdictKind.EMPTY: "empty",
    VerdictKind.SKIP: "skipped",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A step's learning rate.

    Attributes:
        factor: The ladder's factor in it.
        used: What the optimizer holds, read back.
    """

    factor: float
    used: float


@dataclass(frozen=True, slots=True)
class Update:
    """What became of a step's gradient.

    Attributes:
        outcome: As in `StepRow.outcome`.
        clip: What the gradient was multiplied by to keep the norm limit; 1 is unclipped, 0 no update.
    """

    outcome: Outcome
    clip: float

    @property
    def applied(self) -> bool:
        """Whether the optimizer stepped."""
        return self.outcome == APPLIED


def set_rate(session: Session, injector: Injector, step: int, *, cut: float = 1.0) -> Rate:
    """Put the step's learning rate into the optimizer, before the ranks compare what they are about to do.

    Args:
        session: The run.
        injector: Its drill faults.
        step: Global batch (0-based).
        cut: A further factor, of an experiment.
    """
    config = session.config
    factor = cut * lr_factor(step, session.directive.lr_events, floor=config.lr.floor, ramp_steps=config.lr.ramp_steps)
    planned = factor * scheduled_lr(
        step,
        peak=config.optimizer.lr,
        warmup_steps=config.schedule.warmup_steps,
        total_steps=config.train.steps,
        min_ratio=config.schedule.min_ratio,
    )
    scale = injector.lr_scale(step, lr_factor=factor)
    return Rate(factor, session.engine.set_learning_rate(planned * scale))


def update(
    session: Session,
    step: int,
    seen: Vitals,
    kind: VerdictKind,
    clip_to: float,
    *,
    log: GradientLog | None = None,
) -> Update:
    """Apply the gradient, or throw it away (collective).

    Args:
        session: Its engine holds the gradient.
        step: Global batch (0-based).
        seen: The step's vitals.
        kind: The verdict on it, no incident.
        clip_to: Norm to clip to, if that is below the configuration's.
        log: Told of the gradient before it is scaled.
    """
    engine = session.engine
    if not kind.applies_update:
        engine.drop()
        return Update(_OUTCOMES[kind], 0.0)
    limit = session.config.train.clip_norm
    clip = clip_factor(seen.grad_norm, clip_to if limit is None else min(limit, clip_to))
    scale = clip * token_correction(seen.tokens, seen.nominal_tokens)
    if log is not None:
        log.capture(engine, scale=scale)
    if scale != 1.0:
        engine.scale_gradients(scale)
    if not engine.apply():
        raise InternalError(f"DeepSpeed refused the update of step {step}, which our verdict had passed")
    return Update(APPLIED, clip)
