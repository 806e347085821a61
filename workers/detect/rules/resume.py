"""The first rows after a restart: a run that was restored whole goes on where it was. Pure.

Lost optimizer moments, another learning rate or wrong weights show in the first steps: the loss jumps and the
gradient norm is many times what it was. A rule that waits for persistence sees only the tail of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from stormsail.workers.detect.rules.row import Finding, Kind, Row
from stormsail.workers.detect.rules.rule import Rule, count, limit
from stormsail.workers.detect.rules.windows import Values, median, median_and_scatter, push

_SCATTER_FLOOR = 0.004  # of the level


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What was before the last restart, and what came after it.

    Attributes:
        losses: The last losses, in nats, oldest first; frozen while the rows after a restart are judged.
        log_norms: The last logarithms of the norm, likewise.
        since: Rows since the restart; -1 if none is under judgement.
        jumps: Rows since the restart whose loss was out of range.
        first_losses: With nothing known before: the losses since the start.
        first_log_norms: The same for the logarithm of the norm.
    """

    losses: Values = ()
    log_norms: Values = ()
    since: int = -1
    jumps: int = 0
    first_losses: Values = ()
    first_log_norms: Values = ()


@dataclass(frozen=True)
class ResumeContinuity(Rule[ResumeState]):
    """Loss and norm of the first rows after a restart against the rows before it.

    Where a log begins in the middle of a run nothing is known of before; then the first rows are compared with
    those that follow, in hindsight, which takes `hindsight` rows.
    """

    state_type: ClassVar[type[object]] = ResumeState
    name: ClassVar[str] = "resume"
    kind: ClassVar[Kind] = Kind.RESUME_FAULT
    unit: ClassVar[str] = "nats above the level before"
    source: ClassVar[str] = "Stormsail"

    rise: float = limit(0.2, "nats", "a loss further above the level before is out of range")
    z: float = limit(8.0, "robust sigma", "and this far against the scatter before")
    norm_ratio: float = limit(3.0, "x median norm before", "beside a norm beyond this, two such rows are an incident")
    severe_ratio: float = limit(8.0, "x median norm before", "beside a norm beyond this, one row is enough")
    severe_rise: float = limit(0.5, "nats", "without norms, one row is enough where rows are ten or more steps apart")
    rows: int = count(10, "rows", "rows after a restart that are judged")
    window: int = count(64, "rows", "rows before it that say what is normal")
    least: int = count(20, "rows", "rows before it that are needed")
    hindsight: int = count(30, "rows", "rows after a start in the middle before it is judged; 0: it never is")

    def _observe(self, state: ResumeState, row: Row) -> tuple[ResumeState, Finding | None]:
        if not math.isfinite(row.loss):
            return state, None
        if row.restart:
            state = replace(state, since=0, jumps=0, first_losses=(), first_log_norms=())
        if state.since < 0:
            return self._learned(state, row), None
        if len(state.losses) < self.least:
            return self._cold(state, row) if self.hindsight else (self._learned(replace(state, since=-1), row), None)
        return self._against_before(state, row)

    def _against_before(self, state: ResumeState, row: Row) -> tuple[ResumeState, Finding | None]:
        since = state.since + 1
        level, scatter = median_and_scatter(state.losses)
        rise = row.loss - level
        ended = replace(state, since=since if since < self.rows else -1)
        if rise <= max(self.rise, self.z * max(scatter, _SCATTER_FLOOR * abs(level))):
            return (ended if ended.since >= 0 else self._learned(ended, row)), None
        after = replace(ended, jumps=state.jumps + 1)
        times = self._times(row.log_norm, state.log_norms)
        alone = row.stride >= 10 and rise > self.severe_rise  # noqa: PLR2004 - steps per row; the next is too late
        needed = 1 if (alone if times is None else times > self.severe_ratio) else 2
        calm_norm = times is not None and times <= self.norm_ratio
        if after.jumps < (needed + 1 if calm_norm else needed):
            return after, None
        beside = "" if times is None else f", gradient norm {times:.1f} x that before"
        return after, self.say(
            rise,
            f"loss {row.loss:.3f} in row {since} after a restart, {rise:.2f} nat above the level before{beside}",
            onset=max(0, row.step - (since - 1) * row.stride),
        )

    def _cold(self, state: ResumeState, row: Row) -> tuple[ResumeState, Finding | None]:
        losses = (*state.first_losses, row.loss)
        norms = state.first_log_norms if row.log_norm is None else (*state.first_log_norms, row.log_norm)
        if len(losses) < self.hindsight:
            return replace(state, since=state.since + 1, first_losses=losses, first_log_norms=norms), None
        after = ResumeState(losses, norms)
        level, scatter = median_and_scatter(losses[self.hindsight // 2 :])
        rise = max(losses[:5]) - level
        decays = median(losses[:8]) > median(losses[8:16]) > level
        if not decays or rise <= max(2.0 * self.rise, self.z * max(scatter, _SCATTER_FLOOR * abs(level))):
            return after, None
        times = self._times(max(norms[:5]), norms[self.hindsight // 2 :]) if len(norms) == len(losses) else None
        if times is not None and times <= self.severe_ratio:
            return after, None
        beside = "" if times is None else f", gradient norm {times:.1f} x what followed"
        return after, self.say(
            rise,
            f"this log begins in the middle of a run, and its first rows lie {rise:.2f} nat above the next{beside}",
        )

    def _times(self, log_norm: float | None, before: Values) -> float | None:
        if log_norm is None or not before:
            return None
        return math.exp(min(log_norm - median(before), 600.0))

    def _learned(self, state: ResumeState, row: Row) -> ResumeState:
        log_norm = row.log_norm
        norms = state.log_norms if log_norm is None else push(state.log_norms, log_norm, self.window)
        return ResumeState(push(state.losses, row.loss, self.window), norms)
