"""What one trial showed: from the course of its losses and norms to the figures that sweeps compare; pure.

No figure here is ever NaN: what was not measured is None, and a trial that diverged says so in words and step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

DIVERGED_NATS = 0.5
"""Rise above an earlier level, in nats, that counts as divergence (`Wortsman et al.` use the same order)."""

_SMOOTH = 5
_REGAINED_NATS = 0.05
_LAST_SHARE = 0.1
_CURVE_POINTS = 64
_SPIKE_SIGMA = 7.0
_SPIKE_WINDOW = 1000
_SPIKE_LEAST = 20
_WORST = 1e6


@dataclass(slots=True)
class Course:
    """What a trial noted step by step; all lists have one entry a step.

    Attributes:
        loss: In nats; may hold nan and inf.
        norm: Gradient norm before clipping; may hold nan and inf.
        clipped: Whether the gradient was clipped.
        update_rms: Root mean square of the update over the learning rate; 0 where no update was applied.
        flagged: Whether the detectors called the step out of the ordinary.
        incidents: Steps at which the detectors would have opened an incident.
        logits: (step, largest absolute attention logit), where probed.
        condemned: Steps that were run when a scheduler could first have ended the trial as diverged, or None.
    """

    loss: list[float] = field(default_factory=list)
    norm: list[float] = field(default_factory=list)
    clipped: list[bool] = field(default_factory=list)
    update_rms: list[float] = field(default_factory=list)
    flagged: list[bool] = field(default_factory=list)
    incidents: list[int] = field(default_factory=list)
    logits: list[tuple[int, float]] = field(default_factory=list)
    condemned: int | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """That a trial did not stay stable.

    Attributes:
        step: From where on.
        reason: In words.
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one trial; None: not measured.

    Attributes:
        diverged: Reason, or "" for a stable trial.
        diverged_step: Step, or None.
        steps: Steps that were run, or after which a scheduler could have ended the trial.
        initial_loss: Loss of the first step, in nats.
        final_loss: Mean loss of the last tenth of the steps, in nats; None if it is not finite, if the trial was ended before
            its last step (a loss from the middle compares with no other trial's), or if a scheduler could have ended it.
        spike_loss: Share of losses at least 7 standard deviations above their recent mean.
        spike_norm: The same for the gradient norm.
        incidents_per_10k: Incidents that the detectors would have opened, per 10,000 steps.
        max_logit: Largest absolute attention logit.
        update_rms_p99: 99th percentile of the updates' root mean square over the learning rate.
        clip_rate: Share of steps that were clipped.
        norm_p50: Median gradient norm after the first tenth of the steps.
        curve: At most 64 (step, loss) points.
    """

    diverged: str
    diverged_step: int | None
    steps: int
    initial_loss: float | None
    final_loss: float | None
    spike_loss: float
    spike_norm: float
    incidents_per_10k: float
    max_logit: float | None
    update_rms_p99: float | None
    clip_rate: float
    norm_p50: float | None
    curve: tuple[tuple[int, float], ...]


def figures_of(course: Course, *, steps: int, stopped: str = "") -> Figures:
    """Sum a course up.

    Args:
        course: Step by step.
        steps: How many the trial was to have.
        stopped: Why the trial ended because of its numbers, if it did.

    What a trial did after a scheduler could have ended it is left out of every figure: whether it was is chance.
    """
    if course.condemned is not None:
        course, stopped = _until(course, course.condemned), ""
    found = divergence(course.loss)
    run = len(course.loss)
    if found is None and stopped:
        found = Divergence(max(0, run - 1), stopped)
    if found is None and course.condemned is not None:
        found = Divergence(
            course.condemned - 1, f"loss stood half a nat above its own minimum at step {course.condemned - 1}"
        )
    ended = bool(stopped) or run < steps or course.condemned is not None
    updates = [value for value in course.update_rms if math.isfinite(value) and value > 0.0]
    late_norms = [value for value in course.norm[run // 10 :] if math.isfinite(value)]
    logits = [value for _, value in course.logits if math.isfinite(value)]
    return Figures(
        diverged=found.reason if found else "",
        diverged_step=found.step if found else None,
        steps=run,
        initial_loss=_finite(course.loss[0]) if run else None,
        final_loss=None if ended else final_loss(course.loss),
        spike_loss=spike_score(course.loss),
        spike_norm=spike_score(course.norm),
        incidents_per_10k=10_000.0 * len(course.incidents) / run if run else 0.0,
        max_logit=max(logits, default=None),
        update_rms_p99=quantile(updates, 0.99) if updates else None,
        clip_rate=fmean(course.clipped) if course.clipped else 0.0,
        norm_p50=median(late_norms) if late_norms else None,
        curve=thinned(course.loss),
    )


def _until(course: Course, steps: int) -> Course:
    """A course as it stood after so many steps."""
    return Course(
        loss=course.loss[:steps],
        norm=course.norm[:steps],
        clipped=course.clipped[:steps],
        update_rms=course.update_rms[:steps],
        flagged=course.flagged[:steps],
        incidents=[step for step in course.incidents if step < steps],
        logits=[(step, logit) for step, logit in course.logits if step < steps],
        condemned=course.condemned,
    )


def divergence(losses: Sequence[float]) -> Divergence | None:
    """Whether, where and why a course of losses is not stable.

    It is not if a loss is not finite; if the end lies half a nat above the run's own minimum; if it rose so far
    and never came back; or if it ends 0.05 nats above where it began. All but the first look at a running median of five.
    """
    bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        return Divergence(bad, f"non-finite loss at step {bad}")
    if len(losses) < _SMOOTH:
        return None
    smooth = _smoothed(losses)
    lowest, lowest_step = min((value, step) for step, value in enumerate(smooth))
    if smooth[-1] > lowest + DIVERGED_NATS:
        rose = next(step for step in range(lowest_step, len(smooth)) if smooth[step] > lowest + DIVERGED_NATS)
        return Divergence(rose, f"loss ends {smooth[-1] - lowest:.2f} nats above its own minimum, risen at step {rose}")
    lost = _never_regained(smooth)
    if lost is not None:
        return Divergence(lost, f"loss rose at step {lost} and never regained its own minimum")
    if smooth[-1] > losses[0] + _REGAINED_NATS:
        return Divergence(0, "loss ends above where it began")
    return None


def _never_regained(smooth: Sequence[float]) -> int | None:
    """The first step that lies half a nat above all before it, if no later one comes back to that level."""
    later = math.inf
    lowest_from = [0.0] * len(smooth)
    for step in range(len(smooth) - 1, -1, -1):
        later = min(later, smooth[step])
        lowest_from[step] = later
    lowest = math.inf
    for step, value in enumerate(smooth):
        if value > lowest + DIVERGED_NATS and lowest_from[step] > lowest + _REGAINED_NATS:
            return step
        lowest = min(lowest, value)
    return None


def divergence_score(losses: Sequence[float]) -> float:
    """How far a trial has diverged by now: 0 while it is stable, else nats beyond the limit; finite, at most 1e6.

    This, and nothing else, is what an early-stopping scheduler may look at: a slow trial scores like a fast one. A rise
    counts once it has lasted for a tenth of the course, as a spike that heals itself is no divergence.
    """
    if any(not math.isfinite(loss) for loss in losses):
        return _WORST
    if len(losses) < _SMOOTH:
        return 0.0
    smooth = _smoothed(losses)
    lately = smooth[-max(_SMOOTH, round(_LAST_SHARE * len(smooth))) :]
    return min(_WORST, max(0.0, min(lately) - min(smooth) - DIVERGED_NATS))


def final_loss(losses: Sequence[float]) -> float | None:
    """Mean of the last tenth of the losses, or None if one of them is not finite."""
    last = losses[-max(1, round(len(losses) * _LAST_SHARE)) :]
    if not last or not all(math.isfinite(value) for value in last):
        return None
    return fmean(last)


def spike_score(values: Sequence[float]) -> float:
    """Share of values at least 7 standard deviations from the mean of up to 1000 before them (OLMo 2).

    The value itself is no part of its window: with it inside, no value of a short series could ever count. Non-finite
    values count as spikes and stay out of the window.
    """
    window: deque[float] = deque(maxlen=_SPIKE_WINDOW)
    spikes = judged = 0
    for value in values:
        if len(window) >= _SPIKE_LEAST or not math.isfinite(value):
            judged += 1
            spikes += not math.isfinite(value) or _is_spike(value, window)
        if math.isfinite(value):
            window.append(value)
    return spikes / judged if judged else 0.0


def _is_spike(value: float, window: Sequence[float]) -> bool:
    mean = fmean(window)
    deviation = math.sqrt(fmean((other - mean) ** 2 for other in window))
    return abs(value - mean) >= _SPIKE_SIGMA * max(deviation, 1e-12)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, by linear interpolation; at least one value."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def thinned(losses: Sequence[float], points: int = _CURVE_POINTS) -> tuple[tuple[int, float], ...]:
    """At most `points` finite (step, loss) pairs, first and last among them."""
    finite = [(step, loss) for step, loss in enumerate(losses) if math.isfinite(loss)]
    if len(finite) <= points:
        return tuple(finite)
    return tuple(finite[round(index * (len(finite) - 1) / (points - 1))] for index in range(points))


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Running median of up to five values; not of fewer than five at the end, so that one step decides nothing."""
    return [median(losses[max(0, step + 1 - _SMOOTH) : step + 1]) for step in range(len(losses))]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
