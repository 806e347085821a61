"""The step loop of one rank: batch, forward, backward, vitals, verdict, update, snapshot.

The healthy path makes no blocking call to any actor. Everything that ranks must decide alike is either a pure
function of what all of them hold, or decided once by rank 0 and broadcast.
"""

from __future__ import annotations

import dataclasses
import time

from stormsail.platform.errors import InternalError
from stormsail.platform.messages import Directive, FaultKind, Incident, Phase, StepRow
from stormsail.workers import vitals
from stormsail.workers.batches import BatchReader, checksum
from stormsail.workers.clip import clip_factor
from stormsail.workers.detect.verdict import Observation, Policy, Verdict, VerdictKind, judge
from stormsail.workers.heartbeat import HeartbeatThread, now_s
from stormsail.workers.inject import Injector
from stormsail.workers.measure import measure
from stormsail.workers.schedule import lr_factor, scheduled_lr
from stormsail.workers.seeding import seed_all
from stormsail.workers.session import Session, Supervisor
from stormsail.workers.snapshot import SnapshotWriter


class StepLoop:
    """Runs steps until the run is done, or a request or a directive ends it.

    Args:
        session: The state of this rank.
        source: The data, wrapped so that batches come out.
        supervisor: Asked on incidents, by rank 0 only.
        beat: The line to the supervisor.
        injector: Drill faults.
        snapshots: Writes checkpoints.
    """

    def __init__(
        self,
        session: Session,
        *,
        source: BatchReader,
        supervisor: Supervisor,
        beat: HeartbeatThread,
        injector: Injector,
        snapshots: SnapshotWriter,
    ) -> None:
        self.session = session
        self.config = session.config
        self.world = session.world
        self.device = session.device
        self.source = source
        self.supervisor = supervisor
        self.beat = beat
        self.injector = injector
        self.snapshots = snapshots
        self.policy = Policy(self.config.detect, self.config.nonfinite)
        self.verdict = Verdict(VerdictKind.HEALTHY)
        self.last_saved = -1

    # ---------------------------------------------------------------- top level

    def run(self, directive: Directive) -> str:
        """Obey the first directive and run to the end.

        Returns:
            "done", or "stopped" when a person or the ladder ended it.
        """
        self._obey(directive)
        while True:
            directive = self.session.directive
            if directive.stop_reason:
                return "stopped"
            if (
                self.session.position.step >= self.config.train.steps
                or self.session.position.step == directive.stop_step
            ):
                self._save_last()
                return "done"
            if directive.fp32_until is not None and self.session.position.step >= directive.fp32_until:
                self.session.leave_fp32()
            if self._step():
                self._save_last()
                return "stopped"

    def _step(self) -> bool:
        """Run one step. Returns whether a person asked to stop after it."""
        step = self.session.position.step
        started = time.perf_counter()
        self.beat.at(Phase.STEP, step)
        self.injector.before_step(step)
        mine = self._compute(step)
        seen = vitals.exchange(mine, device=self.device, nominal_tokens=self.source.nominal_tokens)
        if any(row.step != step for row in seen.ranks):
            raise InternalError(f"ranks have come apart: steps {[row.step for row in seen.ranks]}")
        verdict = self._judge(step, seen)
        if verdict is VerdictKind.INCIDENT:
            self._incident(step, seen)
            return False
        self._finish(step, seen, verdict, started)
        self._snapshot_if_due()
        return seen.stop

    def _compute(self, step: int) -> vitals.RankVitals:
        begun = time.perf_counter()
        batches = self.source.micro_batches(step, self.session.order)
        data_s = time.perf_counter() - begun
        self._seed(step)
        engine = self.session.engine
        scale = self.world.world_size / self.source.nominal_tokens
        losses, tokens = 0.0, 0
        for index, batch in enumerate(batches):
            losses += engine.forward_backward(batch, scale, last=index == len(batches) - 1)
            tokens += int(batch[2].sum())
        self.injector.after_backward(engine, step)
        return measure(
            engine,
            step=step,
            loss_sum=losses,
            tokens=tokens,
            compute_s=time.perf_counter() - begun - data_s,
            data_s=data_s,
            stop=bool(self.beat.stop_requested),
            batch=sum(checksum(batch) for batch in batches),
        )

    def _seed(self, step: int) -> None:
        """Randomness of a step (dropout) is a function of (seed, step, rank), so that no state needs to be stored."""
        seed_all(self.config.seed, step, self.world.rank)

    # ------------------------------------------------------------------ verdict

    def _judge(self, step: int, seen: vitals.Vitals) -> VerdictKind:
        """Rank 0 decides, all ranks hold the same verdict afterwards (collective)."""
        code = 0
        if self.world.rank == 0:
            self.verdict = self._opinion(step, seen)
            code = self.verdict.kind.code
        return VerdictKind.from_code(vitals.share_verdict(code, device=self.device))

    def _opinion(self, step: int, seen: vitals.Vitals) -> Verdict:
        observation = Observation(
            step=step,
            loss=seen.loss,
            grad_norm=seen.grad_norm,
            nonfinite_gradients=seen.nonfinite_gradients,
            nonfinite_state=seen.nonfinite_state > 0,
            tokens=seen.tokens,
        )
        self.session.detector, verdict = judge(self.session.detector, observation, self.policy)
        broken = self.session.continuity.check(step, seen.loss)
        if broken and verdict.kind is not VerdictKind.INCIDENT:
            return Verdict(VerdictKind.INCIDENT, fault=FaultKind.RESUME_FAULT, onset=step, reason=broken)
        return verdict

    def _incident(self, step: int, seen: vitals.Vitals) -> None:
        """Drop the gradient, ask once, obey on all ranks (collective)."""
        self.session.engine.drop()
        self.beat.at(Phase.CONSULT, step)
        directive = None
        if self.world.rank == 0:
            self.beat.flush()  # the supervisor judges by what it has heard so far
            directive = self.supervisor.incident(self._describe(step, seen))
        self._obey(vitals.share_object(directive, device=self.device))

    def _describe(self, step: int, seen: vitals.Vitals) -> Incident:
        incident = self.verdict.incident(self.session.directive.generation, step)
        evidence = {
            **incident.evidence,
            "reason": self.verdict.reason,
            "rank": seen.first_bad_rank,
            "parameter": self._parameter_name(seen.first_bad_parameter),
        }
        return dataclasses.replace(incident, evidence=evidence)

    def _obey(self, directive: Directive) -> None:
        self.session.obey(directive)
        self.last_saved = self.session.position.step
        if not self.session.directive.stop_reason:
            self.snapshots.prepare(self.session.engine)

    # ------------------------------------------------------------------- update

    def _finish(self, step: int, seen: vitals.Vitals, kind: VerdictKind, started: float) -> None:
        factor = lr_factor(
            step, self.session.directive.lr_events, floor=self.config.lr.floor, ramp_steps=self.config.lr.ramp_steps
        )
        outcome, used, clipped = self._update(step, seen, kind, factor)
        self.session.position.step += 1
        self.session.position.applied += outcome == "applied"
        self.session.position.tokens += seen.tokens
        if self.world.rank == 0:
            self._note(step, seen, outcome)
            self.beat.row(
                StepRow(
                    generation=self.session.directive.generation,
                    step=step,
                    applied=self.session.position.applied,
                    loss=seen.loss,
                    grad_norm=seen.grad_norm,
                    clipped_norm=clipped,
                    lr=used,
                    lr_factor=factor,
                    tokens=seen.tokens,
                    step_s=time.perf_counter() - started,
                    time_s=now_s(),
                    precision=self.session.engine.precision,
                    outcome=outcome,
                    flagged=kind is VerdictKind.WATCH,
                    batch=seen.batch,
                )
            )

    def _update(self, step: int, seen: vitals.Vitals, kind: VerdictKind, factor: float) -> tuple[str, float, float]:
        engine = self.session.engine
        if kind in (VerdictKind.DROP, VerdictKind.EMPTY):
            engine.drop()
            return ("empty" if kind is VerdictKind.EMPTY else "dropped"), 0.0, 0.0
        clip = clip_factor(seen.grad_norm, self.config.train.clip_norm)
        scale = clip * vitals.token_correction(seen.tokens, self.source.nominal_tokens)
        if scale != 1.0:
            engine.scale_gradients(scale)
        planned = factor * scheduled_lr(
            step,
            peak=self.config.optimizer.lr,
            warmup_steps=self.config.schedule.warmup_steps,
            total_steps=self.config.train.steps,
            min_ratio=self.config.schedule.min_ratio,
        )
        used = engine.set_learning_rate(planned * self.injector.lr_scale(step, lr_factor=factor))
        if not engine.apply():
            raise InternalError(f"DeepSpeed refused the update of step {step}, which our verdict had passed")
        return "applied", used, seen.grad_norm * clip

    def _note(self, step: int, seen: vitals.Vitals, outcome: str) -> None:
        if outcome == "dropped":
            self.beat.line(
                "update.dropped",
                step=step,
                rank=seen.first_bad_rank,
                first_parameter=self._parameter_name(seen.first_bad_parameter),
                count=seen.nonfinite_gradients,
            )
        elif outcome == "empty":
            self.beat.line("step.empty", step=step)
        elif self.verdict.kind is VerdictKind.WATCH:
            self.beat.line("spike.watch", step=step, severity=self.verdict.severity, reason=self.verdict.reason)

    def _parameter_name(self, index: int) -> str:
        return self.session.engine.pieces[index].name if index >= 0 else ""

    # ------------------------------------------------------------------ snapshot

    def _snapshot_if_due(self) -> None:
        if self.session.position.step % self.config.checkpoint.every_steps == 0:
            self._save()

    def _save_last(self) -> None:
        """The state that the run ends with must not be left out because earlier saves are still on their way."""
        self.beat.at(Phase.SAVE, self.session.position.step)
        self.snapshots.wait(self.config.checkpoint.deadline_s)
        self._save()

    def _save(self) -> None:
        if self.session.position.step == self.last_saved:
            return
        self.beat.at(Phase.SAVE, self.session.position.step)
        taken = self.snapshots.take(
            self.session.engine,
            generation=self.session.directive.generation,
            step=self.session.position.step,
            meta=self.session.metadata() if self.world.rank == 0 else None,
        )
        if taken:
            self.last_saved = self.session.position.step
