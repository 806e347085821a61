"""Finite numbers that are out of the ordinary: which steps are flagged, and when a run of flags is an incident. Pure.

Two signals are watched, the all-reduced loss and the logarithm of the gradient norm. A step whose loss is far
above its baseline, or whose norm is, is *flagged*. A flag alone costs nothing: it is reported, and its values stay
out of the baseline. An incident needs persistence, and then the step after:

- `needed` of the last `of` steps are flagged, and
- a *later* step is flagged again, so that a spike of `needed` steps which returns by itself stays a report, and
- the spike had `grace_steps` to heal, or it is severe: this step, or `needed` of the last `of`, had a loss beyond
  `severe_z` or a norm beyond `norm_ratio` times its median.

A norm that has moved to a new level below that ratio, while the loss is calm, is how training goes (a new phase,
another learning rate). After the grace its baseline is begun again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from stormsail.workers.detect.baseline import Baseline

_LOSS_FLOOR = 0.004  # of the level: healthy runs scatter by about this much late in training
_LOG_NORM_FLOOR = 0.1  # healthy standard deviation of the log norm is 0.08 to 0.10
_NORM_FLAG_RATIO = 3.0  # healthy runs exceed three times the median up to 4 times in 10,000 steps
_TINY_NORM = 1e-30


@dataclass(frozen=True, slots=True)
class SpikeLimits:
    """The rule's numbers.

    Attributes:
        z: Robust z-score of a flagged step.
        severe_z: Robust z-score that needs no grace.
        norm_ratio: Gradient norm over its median that needs none.
        needed: Flagged steps that make a spike persistent,
        of: among so many.
        grace_steps: Steps that a persistent but mild spike gets to heal by itself.
        warmup_steps: Accepted steps before the rule speaks.
        window_steps: Accepted residuals that make the baseline.
    """

    z: float = 6.0
    severe_z: float = 12.0
    norm_ratio: float = 10.0
    needed: int = 3
    of: int = 5
    grace_steps: int = 20
    warmup_steps: int = 20
    window_steps: int = 256


@dataclass(frozen=True, slots=True)
class Reading:
    """One step as the rule sees it.

    Attributes:
        step: The step.
        loss: Its loss, in nats.
        log_norm: Natural logarithm of its gradient norm.
        loss_z: Robust z-score of the loss.
        norm_z: Robust z-score of the log norm.
        norm_ratio: Gradient norm over its running median.
        loss_flagged: The loss is out of the ordinary.
        norm_flagged: The norm is.
        severe: Too bad to wait for it to heal.
    """

    step: int
    loss: float
    log_norm: float
    loss_z: float = 0.0
    norm_z: float = 0.0
    norm_ratio: float = 1.0
    loss_flagged: bool = False
    norm_flagged: bool = False
    severe: bool = False

    @property
    def flagged(self) -> bool:
        """Whether either signal is out of the ordinary."""
        return self.loss_flagged or self.norm_flagged


@dataclass(frozen=True, slots=True)
class SpikeState:
    """What the rule remembers; of bounded size.

    Attributes:
        loss: Baseline of the loss, in nats.
        norm: Baseline of the log gradient norm.
        accepted: Steps accepted into the baselines since the start.
        flags: Whether each of the last `of` steps was flagged, oldest first.
        serious: The same for flags that may become an incident: the loss, or a norm beyond `norm_ratio`.
        severe: The same for severe flags.
        onset: First flagged step of the present run of flags, or -1.
        persistent: Step at which that run became persistent, or -1.
        peak_z: Largest z-score of the run.
    """

    loss: Baseline = field(default_factory=Baseline)
    norm: Baseline = field(default_factory=Baseline)
    accepted: int = 0
    flags: tuple[bool, ...] = ()
    serious: tuple[bool, ...] = ()
    severe: tuple[bool, ...] = ()
    onset: int = -1
    persistent: int = -1
    peak_z: float = 0.0


def read(state: SpikeState, step: int, loss: float, grad_norm: float, limits: SpikeLimits) -> Reading:
    """Judge one step against the baselines; both numbers must be finite."""
    log_norm = math.log(max(grad_norm, _TINY_NORM))
    if state.accepted < limits.warmup_steps:
        return Reading(step, loss, log_norm)
    loss_z = state.loss.z(loss, max(_LOSS_FLOOR * abs(state.loss.level), 1e-9))
    norm_z = state.norm.z(log_norm, _LOG_NORM_FLOOR)
    # A norm that was 0 until now gives no ratio that a float can hold.
    ratio = math.exp(min(log_norm - state.norm.level, 600.0))
    return Reading(
        step,
        loss,
        log_norm,
        loss_z=loss_z,
        norm_z=norm_z,
        norm_ratio=ratio,
        loss_flagged=loss_z > limits.z,
        norm_flagged=norm_z > limits.z and ratio > _NORM_FLAG_RATIO,
        severe=loss_z > limits.severe_z or (norm_z > limits.z and ratio > limits.norm_ratio),
    )


def advance(state: SpikeState, reading: Reading, limits: SpikeLimits) -> SpikeState:
    """The state after this step: its flag is noted, or its values are accepted."""
    moved = _note_flags(state, reading, limits)
    if not reading.flagged:
        return replace(
            moved,
            loss=state.loss.accept(reading.loss, limits.window_steps),
            norm=state.norm.accept(reading.log_norm, limits.window_steps),
            accepted=state.accepted + 1,
        )
    if _new_norm_level(moved, reading, limits):
        return replace(moved, norm=Baseline().accept(reading.log_norm, limits.window_steps))
    return moved


def is_incident(state: SpikeState, reading: Reading, limits: SpikeLimits) -> bool:
    """Whether the run of flags that this step belongs to needs a decision; `state` is the one after the step."""
    needed = limits.needed
    if not state.serious[-1] or sum(state.serious) < needed or reading.step <= state.persistent:
        return False
    severe = reading.severe or sum(state.severe) >= needed
    return severe or reading.step - state.persistent >= limits.grace_steps


def _note_flags(state: SpikeState, reading: Reading, limits: SpikeLimits) -> SpikeState:
    """Move the windows on by one step; a run ends when a whole window is calm."""
    needed, window = limits.needed, limits.of
    flags = (*state.flags, reading.flagged)[-window:]
    serious = (*state.serious, reading.loss_flagged or reading.severe)[-window:]
    severe = (*state.severe, reading.severe)[-window:]
    state = replace(state, flags=flags, serious=serious, severe=severe)
    if not any(flags):
        return replace(state, onset=-1, persistent=-1, peak_z=0.0)
    onset = reading.step if state.onset < 0 else state.onset
    persistent = reading.step if state.persistent < 0 and sum(serious) >= needed else state.persistent
    peak = max(state.peak_z, reading.loss_z, reading.norm_z) if reading.flagged else state.peak_z
    return replace(state, onset=onset, persistent=persistent, peak_z=peak)


def _new_norm_level(state: SpikeState, reading: Reading, limits: SpikeLimits) -> bool:
    """Whether only the norm has been out of the ordinary for the whole grace, and not severely."""
    calm_loss = not any(state.serious) and not reading.loss_flagged
    return calm_loss and all(state.flags) and reading.step - state.onset >= limits.grace_steps
