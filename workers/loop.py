"""The step loop of one rank: batch, forward, backward, vitals, verdict, update, snapshot.

The healthy path makes no blocking call to any actor. Everything that ranks must decide alike is either a pure
function of what all of them hold, or decided once by rank 0 and broadcast.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Protocol

import torch

from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.config.dump import config_digest
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef, Directive, FaultKind, Incident, Phase, Placement, StepRow, World
from stormsail.platform.storage.store import ObjectStore
from stormsail.workers import restore as restoring
from stormsail.workers import vitals
from stormsail.workers.batches import BatchReader, checksum
from stormsail.workers.clip import clip_factor
from stormsail.workers.continuity import Continuity
from stormsail.workers.detect.verdict import DetectorState, Observation, Policy, Verdict, VerdictKind, judge
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.heartbeat import HeartbeatThread, now_s
from stormsail.workers.inject import Injector
from stormsail.workers.measure import measure, software
from stormsail.workers.schedule import lr_factor, scheduled_lr
from stormsail.workers.snapshot import SnapshotWriter

MAX_RESTORE_TRIES = 8


class Supervisor(Protocol):
    """What rank 0 asks of the supervisor; each call blocks and is made only off the healthy path."""

    def incident(self, incident: Incident) -> Directive:
        """Report an incident and get the decision."""

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        """Report that a checkpoint could not be loaded and get another decision."""


@dataclass
class Position:
    """Where the run is; rolls back with the state.

    Attributes:
        step: Next step to run (= global batches consumed).
        applied: Optimizer updates so far.
        tokens: Real tokens consumed so far.
    """

    step: int = 0
    applied: int = 0
    tokens: int = 0


class StepLoop:
    """Runs steps until the run is done, or a request or a directive ends it.

    Args:
        config: The run.
        placement: World and first directive.
        device: Where to compute.
        store: The run's store.
        source: The data, wrapped so that batches come out.
        supervisor: Asked on incidents, by rank 0 only.
        beat: The line to the supervisor.
        injector: Drill faults.
        snapshots: Writes checkpoints.
    """

    def __init__(
        self,
        config: RunConfig,
        placement: Placement,
        *,
        device: torch.device,
        store: ObjectStore,
        source: BatchReader,
        supervisor: Supervisor,
        beat: HeartbeatThread,
        injector: Injector,
        snapshots: SnapshotWriter,
    ) -> None:
        self.config = config
        self.world: World = placement.world
        self.directive = placement.directive
        self.device = device
        self.store = store
        self.source = source
        self.supervisor = supervisor
        self.beat = beat
        self.injector = injector
        self.snapshots = snapshots
        self.position = Position()
        self.detector = DetectorState()
        self.policy = Policy(config.detect, config.nonfinite)
        self.verdict = Verdict(VerdictKind.HEALTHY)
        self.continuity = Continuity((), exact=False)
        self.engine: ZeroEngine | None = None
        self.last_saved = -1
        self.same_shape = True

    # ---------------------------------------------------------------- top level

    def run(self) -> str:
        """Run to the end. Returns "done", or "stopped" when a person or the ladder ended it."""
        self._obey(self.directive)
        while True:
            directive = self.directive
            if directive.stop_reason:
                return "stopped"
            if self.position.step >= self.config.train.steps or self.position.step == directive.stop_step:
                self._save()
                return "done"
            if directive.fp32_until is not None and self.position.step >= directive.fp32_until:
                self._leave_fp32()
            if self._step():
                self._save()
                return "stopped"

    def _step(self) -> bool:
        """Run one step. Returns whether a person asked to stop after it."""
        step = self.position.step
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
        batches = self.source.micro_batches(step, self.order)
        data_s = time.perf_counter() - begun
        self._seed(step)
        engine = self._engine
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
        torch.manual_seed((self.config.seed * 1_000_003 + step) * 4096 + self.world.rank)

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
        self.detector, verdict = judge(self.detector, observation, self.policy)
        broken = self.continuity.check(step, seen.loss)
        if broken and verdict.kind is not VerdictKind.INCIDENT:
            return Verdict(VerdictKind.INCIDENT, fault=FaultKind.RESUME_FAULT, onset=step, reason=broken)
        return verdict

    def _incident(self, step: int, seen: vitals.Vitals) -> None:
        """Drop the gradient, ask once, obey on all ranks (collective)."""
        self._engine.drop()
        self.beat.at(Phase.CONSULT, step)
        directive = None
        if self.world.rank == 0:
            self.beat.flush()  # the supervisor judges by what it has heard so far
            directive = self.supervisor.incident(self._describe(step, seen))
        self._obey(vitals.share_object(directive, device=self.device))

    def _describe(self, step: int, seen: vitals.Vitals) -> Incident:
        incident = self.verdict.incident(self.directive.generation, step)
        evidence = {
            **incident.evidence,
            "reason": self.verdict.reason,
            "rank": seen.first_bad_rank,
            "parameter": self._parameter_name(seen.first_bad_parameter),
        }
        return dataclasses.replace(incident, evidence=evidence)

    # ------------------------------------------------------------------- update

    def _finish(self, step: int, seen: vitals.Vitals, kind: VerdictKind, started: float) -> None:
        factor = lr_factor(
            step, self.directive.lr_events, floor=self.config.lr.floor, ramp_steps=self.config.lr.ramp_steps
        )
        outcome, used, clipped = self._update(step, seen, kind, factor)
        self.position.step += 1
        self.position.applied += outcome == "applied"
        self.position.tokens += seen.tokens
        if self.world.rank == 0:
            self._note(step, seen, outcome)
            self.beat.row(
                StepRow(
                    generation=self.directive.generation,
                    step=step,
                    applied=self.position.applied,
                    loss=seen.loss,
                    grad_norm=seen.grad_norm,
                    clipped_norm=clipped,
                    lr=used,
                    lr_factor=factor,
                    tokens=seen.tokens,
                    step_s=time.perf_counter() - started,
                    time_s=now_s(),
                    precision=self._engine.precision,
                    outcome=outcome,
                    flagged=kind is VerdictKind.WATCH,
                    batch=seen.batch,
                )
            )

    def _update(self, step: int, seen: vitals.Vitals, kind: VerdictKind, factor: float) -> tuple[str, float, float]:
        engine = self._engine
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
        return self._engine.pieces[index].name if index >= 0 else ""

    # ----------------------------------------------------------------- directive

    def _obey(self, directive: Directive) -> None:
        """Do what was decided: precision, state, order, all on all ranks alike (collective)."""
        for _ in range(MAX_RESTORE_TRIES):
            self.directive = directive
            self.snapshots.drop_before(directive.generation)
            if directive.stop_reason:
                return
            self.beat.at(Phase.BUILD, self.position.step, generation=directive.generation)
            self._build(directive)
            begun = time.perf_counter()
            self.beat.at(Phase.LOAD, self.position.step)
            problem = self._load(directive)
            if problem is None:
                self._begin(directive, time.perf_counter() - begun)
                return
            replacement = None
            if self.world.rank == 0:
                assert directive.restore is not None  # noqa: S101 - only a restore can fail
                replacement = self.supervisor.restore_failed(directive.restore, problem)
            directive = vitals.share_object(replacement, device=self.device)
        raise InternalError(f"{MAX_RESTORE_TRIES} checkpoints in a row could not be loaded")

    def _build(self, directive: Directive) -> None:
        """Make sure that an engine of the right precision is there, fresh where the start state is wanted."""
        if self.engine is not None and self.engine.precision == directive.precision and directive.restore is not None:
            return
        self._rebuild(directive.precision)

    def _rebuild(self, precision: str) -> None:
        if self.engine is not None:
            self.engine.destroy()
        self.engine = ZeroEngine(
            self.config,
            precision=precision,
            rank=self.world.rank,
            world_size=self.world.world_size,
            device=self.device,
        )

    def _load(self, directive: Directive) -> str | None:
        """Load the directive's state. Returns None, or what went wrong ("" if on another rank)."""
        if directive.restore is None:
            self.position = Position()
            self.detector = DetectorState()
            return None
        found = restoring.restore(self._engine, self.store, directive.restore)
        if isinstance(found, str):
            return found
        meta, self.detector = found.meta, found.detector
        self.position = Position(step=meta.step, applied=meta.applied, tokens=meta.tokens)
        self.same_shape = (meta.world_size, meta.threads) == (self.world.world_size, self.config.train.threads)
        return None

    def _begin(self, directive: Directive, took_s: float) -> None:
        self.order = DataOrder(self.source.samples, self.config.seed, directive.skip)
        self.continuity = Continuity(directive.expected_losses, exact=directive.exact and self.same_shape)
        self.last_saved = self.position.step
        self.beat.at(Phase.STEP, self.position.step)
        if self.world.rank == 0 and (directive.restore is not None or directive.tier is not None):
            ref = directive.restore
            self.beat.line(
                "state.restored",
                ref_generation=ref.generation if ref else None,
                ref_step=ref.step if ref else 0,
                generation=directive.generation,
                step=self.position.step,
                applied=self.position.applied,
                tokens=self.position.tokens,
                precision=self._engine.precision,
                compute_dtype=str(self._engine.compute_dtype).removeprefix("torch."),
                took_s=took_s,
            )

    def _leave_fp32(self) -> None:
        """The FP32 window is over: carry the state into an engine of the run's precision (collective)."""
        engine = self._engine
        begun = time.perf_counter()
        dtype = str(engine.compute_dtype).removeprefix("torch.")
        shards, scalars = engine.copy_state(), engine.optimizer_scalars()
        self._rebuild(self.config.train.precision)
        self._engine.write_state(shards, scalars)
        if self.world.rank == 0:
            self.beat.line(
                "replay.finished",
                step=self.position.step,
                window_dtype=dtype,
                precision=self._engine.precision,
                took_s=time.perf_counter() - begun,
            )
        self.directive = dataclasses.replace(self.directive, fp32_until=None, precision=self.config.train.precision)

    # ------------------------------------------------------------------ snapshot

    def _snapshot_if_due(self) -> None:
        if self.position.step % self.config.checkpoint.every_steps == 0:
            self._save()

    def _save(self) -> None:
        if self.position.step == self.last_saved:
            return
        self.beat.at(Phase.SAVE, self.position.step)
        taken = self.snapshots.take(
            self._engine,
            generation=self.directive.generation,
            step=self.position.step,
            meta=self._meta() if self.world.rank == 0 else None,
        )
        if taken:
            self.last_saved = self.position.step

    def _meta(self) -> CheckpointMeta:
        return CheckpointMeta(
            step=self.position.step,
            applied=self.position.applied,
            tokens=self.position.tokens,
            data_position=self.position.step * self.config.train.global_batch,
            world_size=self.world.world_size,
            threads=self.config.train.threads,
            precision=self._engine.precision,
            config_digest=config_digest(self.config),
            software=software(),
            optimizer=self._engine.optimizer_scalars(),
            rng={"counter": "seed, step, rank", "seed": self.config.seed},
            detector=self.detector.to_json(),
            decided={
                "lr_events": [dataclasses.asdict(event) for event in self.directive.lr_events],
                "skip": [list(pair) for pair in self.directive.skip],
            },
        )

    @property
    def _engine(self) -> ZeroEngine:
        if self.engine is None:
            raise InternalError("the engine is used before a directive was obeyed")
        return self.engine
