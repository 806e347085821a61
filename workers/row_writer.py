"""Rank 0's rows: what every finished step is remembered by; the loss forecast reads along."""

from __future__ import annotations

from collections import deque

from stormsail.platform.messages import StepRow
from stormsail.workers import rows
from stormsail.workers.forecast import LossForecaster
from stormsail.workers.heartbeat import Details, HeartbeatThread, now_s
from stormsail.workers.judging import Judge
from stormsail.workers.sampling import Governor
from stormsail.workers.session import Session
from stormsail.workers.updating import Rate, Update
from stormsail.workers.vitals import Vitals

_CLIPPED_OVER = 100  # updates that `clip.share` looks back on


class RowWriter:
    """Writes the rows of one world; used by rank 0 only, in the training thread.

    Args:
        session: The state that the rows are about; its position is already past the step.
        judge: What was found in the step.
        beat: Takes the rows.
    """

    def __init__(self, session: Session, judge: Judge, beat: HeartbeatThread) -> None:
        self._session = session
        self._judge = judge
        self._beat = beat
        self._clipped: deque[bool] = deque(maxlen=_CLIPPED_OVER)
        config = session.config
        limits = session.policy.beside.forecast
        self._forecaster = (
            LossForecaster(beat.line, seed=config.seed, limits=limits) if config.detect.forecast else None
        )

    def write(
        self, step: int, seen: Vitals, done: Update, rate: Rate, *, governor: Governor, sampled: bool, step_s: float
    ) -> StepRow:
        """Hand over the row of a step, and return it; its `values` come when it is sent.

        Args:
            step: Global batch (0-based).
            seen: Its vitals.
            done: What became of its gradient.
            rate: Its learning rate.
            governor: After the step.
            sampled: Whether the costly vitals were taken.
            step_s: Seconds that it took.
        """
        session, verdict = self._session, self._judge.verdict
        if done.applied:
            self._clipped.append(done.clip < 1.0)
        row = StepRow(
            generation=session.directive.generation,
            step=step,
            applied=session.position.applied,
            loss=seen.loss,
            grad_norm=seen.grad_norm,
            clipped_norm=seen.grad_norm * done.clip if done.applied else 0.0,
            lr=rate.used if done.applied else 0.0,
            lr_factor=rate.factor,
            tokens=seen.tokens,
            step_s=step_s,
            time_s=now_s(),
            precision=session.engine.precision,
            outcome=done.outcome,
            flagged=verdict.kind.flagged,
            batch=seen.batch,
            ranks=rows.by_rank(seen) if sampled else {},
        )
        if self._forecaster is not None:
            self._forecaster.hear(step, seen.loss)
        self._beat.row(row, self._details(seen, done, governor, sampled=sampled))
        return row

    def close(self) -> None:
        """End the forecast's thread."""
        if self._forecaster is not None:
            self._forecaster.close()

    def _details(self, seen: Vitals, done: Update, governor: Governor, *, sampled: bool) -> Details:
        """What gives the row's values later, of all that is known now."""
        engine, judge, position = self._session.engine, self._judge, self._session.position
        verdict, slowness, distances = judge.verdict, judge.slowness, judge.distances
        skipped = position.step - position.applied
        clipped = sum(self._clipped) / max(len(self._clipped), 1)

        def values() -> dict[str, float]:
            found = rows.every_step(
                seen,
                verdict=verdict,
                slowness=slowness,
                governor=governor,
                skipped=skipped,
                clip=done.clip,
                clipped=clipped,
            )
            if sampled or verdict.findings:
                found |= rows.layer_norms(seen, engine.groups.names)
            if sampled:
                found |= rows.sampled(seen, engine.groups.names, engine.group_elements) | distances
            return found | (self._forecaster.values if self._forecaster is not None else {})

        return values
