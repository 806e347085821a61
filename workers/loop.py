"""The step loop of one rank: batch, forward, backward, vitals, verdict, update, snapshot.

The healthy path makes no blocking call to any actor. Everything that ranks must decide alike is either a pure
function of what all of them hold, or decided once by rank 0 and broadcast.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext

from stormsail.platform.diagnosis import ReplayPlan
from stormsail.platform.messages import Directive, Incident, Phase, StepRow
from stormsail.workers import plan, vitals
from stormsail.workers.batches import Batch, BatchReader, checksum
from stormsail.workers.detect.verdict import VerdictKind
from stormsail.workers.evaluation import Evaluation, Evaluator
from stormsail.workers.gradient_log import Facts, GradientLog, is_logged
from stormsail.workers.heartbeat import HeartbeatThread, now_s
from stormsail.workers.inject import Injector
from stormsail.workers.judging import Judge
from stormsail.workers.measure import measure, measure_sample
from stormsail.workers.probes import StepProbe
from stormsail.workers.replay_live import diagnose
from stormsail.workers.row_writer import RowWriter
from stormsail.workers.sampling import Governor
from stormsail.workers.seeding import seed_all
from stormsail.workers.session import Session, Supervisor
from stormsail.workers.snapshot import SnapshotWriter
from stormsail.workers.stopwatch import STEP, Stopwatch
from stormsail.workers.updating import Rate, Update, set_rate, update

_GOVERNED_EVERY = 8  # steps; what watching costs does not change from one to the next
_SAMPLED = "sampled"  # no lap: 1 where the step took a sample


class StepLoop:
    """Runs steps until the run is done, or a request or a directive ends it.

    Args:
        session: The state of this rank.
        source: The data, wrapped so that batches come out.
        supervisor: Asked on incidents, by rank 0 only.
        beat: The line to the supervisor.
        injector: Drill faults.
        snapshots: Writes checkpoints.
        log: Keeps each step's gradient, if the run asks for it.
        evaluator: Evaluates the state on held-out samples, if the run asks for it.
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
        log: GradientLog | None = None,
        evaluator: Evaluator | None = None,
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
        self.log = log
        self.evaluator = evaluator
        self.judge = Judge(session, session.policy, beat)
        self.rows = RowWriter(session, self.judge, beat) if session.world.rank == 0 else None
        self.watch = Stopwatch()
        self.governor = self._fresh_governor()
        self.last_saved = -1
        self._evaluation: Evaluation | None = None
        self._standing: plan.Plan = {}
        self._standing_digest = b""

    # ---------------------------------------------------------------- top level

    def run(self, directive: Directive) -> str:
        """Obey the first directive and run to the end.

        Returns:
            "done", or "stopped" when a person or the ladder ended it.
        """
        try:
            return self._run(directive)
        finally:
            self.close()

    def close(self) -> None:
        """End what runs beside the loop."""
        if self.rows is not None:
            self.rows.close()

    def _run(self, directive: Directive) -> str:
        self.obey(directive)
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
                self._settle()
            if self.step():
                self._save_last()
                return "stopped"

    def step(self) -> bool:
        """Run one step. Returns whether a person asked to stop after it."""
        step = self.session.position.step
        self.watch.begin()
        self.beat.at(Phase.STEP, step)
        self.injector.before_step(step)
        sampled = self.governor.samples(step)
        rate = set_rate(self.session, self.injector, step)
        mine = self._compute(step, sampled=sampled)
        with self.watch.lap("exchange"):
            seen = vitals.exchange(mine, device=self.device, nominal_tokens=self.source.nominal_tokens)
        if step % _GOVERNED_EVERY == 0 or seen.sample_s is not None:
            with self.watch.lap("vitals"):
                self._govern(seen)
        if seen.disagreeing:
            self._disagree(step, seen)
            return False
        kind, clip_to = self._judge(step, seen, sampled=sampled)
        if kind is VerdictKind.INCIDENT:
            self._incident(step, seen)
            return False
        self._finish(step, seen, kind, rate, clip_to=clip_to, sampled=sampled)
        self._between_steps(stop=seen.stop)
        return seen.stop

    def _compute(self, step: int, *, sampled: bool) -> vitals.RankVitals:
        with self.watch.lap("data"):
            batches = self.source.micro_batches(step, self.session.order)
        self._seed(step)
        engine = self.session.engine
        engine.waited_s()  # what passes outside of steps have left
        engine.looked_s()
        probe = engine.probe()
        self.injector.before_backward(engine, step)
        with self.watch.lap("compute"):
            losses = self._forward_backward(batches, probe if sampled else None)
        self.injector.after_backward(engine, step)
        if is_logged(self.config, engine.precision):
            with self.watch.lap("update"):
                engine.round_gradients()
        waited = engine.waited_s()
        self.watch.add("comm", waited)
        looked = engine.looked_s()
        self.watch.add("vitals", looked)
        self.watch.add("compute", -waited - looked - probe.spent_s)
        with self.watch.lap("sample"):
            sample = measure_sample(engine, probe) if sampled else None
        self.watch.add("sample", probe.spent_s)
        with self.watch.lap("vitals"):
            return measure(
                engine,
                step=step,
                loss_sum=losses,
                tokens=sum(int(batch[2].sum()) for batch in batches),
                batch=sum(checksum(batch) for batch in batches),
                plan=plan.plan_word(self._standing_digest, step, engine.learning_rates()),
                stop=bool(self.beat.stop_requested),
                times=self._times(),
                sample=sample,
            )

    def _forward_backward(self, batches: list[Batch], probe: StepProbe | None) -> float:
        engine = self.session.engine
        scale = self.world.world_size / self.source.nominal_tokens
        losses = 0.0
        with probe or nullcontext():
            for index, batch in enumerate(batches):
                losses += engine.forward_backward(batch, scale, last=index == len(batches) - 1)
        engine.synchronize()
        return losses

    def _seed(self, step: int) -> None:
        """Randomness of a step (dropout) is a function of (seed, step, rank), so that no state needs to be stored."""
        seed_all(self.config.seed, step, self.world.rank)

    # ------------------------------------------------------------------ watching

    def _times(self) -> vitals.Times:
        before = self.watch.before
        return vitals.Times(
            data_s=self.watch.lapped("data"),
            compute_s=self.watch.lapped("compute"),
            comm_s=self.watch.lapped("comm"),
            update_s=before.get("update", 0.0),
            vitals_s=before.get("vitals", 0.0),
            sample_s=before.get("sample", 0.0) if before.get(_SAMPLED) else math.nan,
            exchange_s=before.get("exchange", 0.0),
            share_s=before.get("share", 0.0),
            step_s=before.get(STEP, 0.0),
        )

    def _govern(self, seen: vitals.Vitals) -> None:
        """All ranks feed their governors the same numbers, so all take the next sample at the same step."""
        step_s = float(seen.floats("step_s").min())  # 0 where a rank knows of no step before
        self.governor = self.governor.learn(step_s=step_s, base_s=seen.watching_s, sample_s=seen.sample_s)

    def _fresh_governor(self) -> Governor:
        return Governor(self.config.detect.sample_every, self.config.detect.budget)

    # ------------------------------------------------------------------ verdict

    def _judge(self, step: int, seen: vitals.Vitals, *, sampled: bool) -> tuple[VerdictKind, float]:
        """Rank 0 decides, all ranks hold the same verdict and norm to clip to afterwards (collective)."""
        code, clip_to = 0, math.inf
        if self.world.rank == 0:
            with self.watch.lap("vitals"):
                verdict = self.judge.opinion(step, seen, sampled=sampled)
                if self.config.ladder.shadow:
                    verdict = self.judge.in_shadow(step, seen)
                code, clip_to = verdict.kind.code, verdict.clip_to
        with self.watch.lap("share"):
            code, clip_to = vitals.share_verdict(code, clip_to, device=self.device)
        return VerdictKind.from_code(code), clip_to

    def _disagree(self, step: int, seen: vitals.Vitals) -> None:
        """Nobody updates where the ranks were about to do different things (collective)."""
        mine = {**self._standing, "step": step, "rates": self.session.engine.learning_rates()}
        plans = vitals.gather_objects(mine)
        if self.world.rank == 0:
            self.judge.disagreement(step, seen.disagreeing, plans)
        self._incident(step, seen)

    def _incident(self, step: int, seen: vitals.Vitals) -> None:
        """Drop the gradient, ask once, obey on all ranks (collective)."""
        self.session.engine.drop()
        self.beat.at(Phase.CONSULT, step)
        incident, directive = None, None
        if self.world.rank == 0:
            self.beat.flush()  # the supervisor judges by what it has heard so far
            incident = self.judge.incident(step, seen)
            directive = self.supervisor.incident(incident)
        directive = vitals.share_object(directive, device=self.device)
        self.obey(directive if directive.experiment is None else self._experiment(incident, directive.experiment))

    def _experiment(self, incident: Incident | None, plan: ReplayPlan) -> Directive:
        """Compute the incident's steps once more as the supervisor asks, and get its decision (collective).

        Args:
            incident: On rank 0, what was reported.
            plan: What to do.
        """
        result = diagnose(plan, self.session, source=self.source, injector=self.injector, at=self.beat.at)
        self.beat.at(Phase.CONSULT, self.session.position.step)
        directive = self.supervisor.replayed(incident, result) if incident is not None else None
        return vitals.share_object(directive, device=self.device)

    def obey(self, directive: Directive) -> None:
        """Do what was decided, on all ranks alike (collective)."""
        self.session.obey(directive)
        self._evaluation = None
        self.last_saved = self.session.position.step
        self.judge.begin()
        self.governor = self._fresh_governor()
        if not self.session.directive.stop_reason:
            self.snapshots.prepare(self.session.engine)
            self._settle()
            self._after_replay()

    def _after_replay(self) -> None:
        """What was taken from the gradient log has not been saved, and the log goes on."""
        self.last_saved = self.session.loaded_step
        if self.log is not None:
            self.log.begin()
        if self.session.position.step != self.session.loaded_step:
            self._between_steps()

    def _settle(self) -> None:
        """Another engine or another plan: what was measured before says nothing about what comes."""
        self.watch.reset()
        self._standing = plan.standing_plan(
            self.config,
            self.session.directive,
            precision=self.session.engine.precision,
            world_size=self.world.world_size,
            samples=self.source.samples,
        )
        self._standing_digest = plan.digest_of(self._standing)

    # ------------------------------------------------------------------- update

    def _finish(
        self, step: int, seen: vitals.Vitals, kind: VerdictKind, rate: Rate, *, clip_to: float, sampled: bool
    ) -> None:
        with self.watch.lap("update"):
            done = update(self.session, step, seen, kind, clip_to, log=self.log)
        self.session.position.step += 1
        self.session.position.applied += done.applied
        self.session.position.tokens += seen.tokens
        self.watch.add(_SAMPLED, float(sampled))
        row = None
        if self.rows is not None:
            with self.watch.lap("vitals"):
                self.judge.note(step, seen, done.outcome)
                row = self.rows.write(
                    step, seen, done, rate, governor=self.governor, sampled=sampled, step_s=self.watch.elapsed_s
                )
        if self.log is not None:
            with self.watch.lap("update"):
                self.log.append(self.session.engine, self._facts(step, done, row))

    def _facts(self, step: int, done: Update, row: StepRow | None) -> Facts:
        """What the gradient log holds of a step besides the gradient; only rank 0 judges and writes rows.

        Without the row's values: the thread that sends the row is filling them in.
        """
        seen = self.judge.seen if row is not None else None
        return Facts(
            generation=self.session.directive.generation,
            step=step,
            outcome=done.outcome,
            applied=self.session.position.applied,
            tokens=self.session.position.tokens,
            seen={} if seen is None else dataclasses.asdict(seen),
            row={} if row is None else dataclasses.asdict(dataclasses.replace(row, values={})),
        )

    # ------------------------------------------------------------- between steps

    def _between_steps(self, *, stop: bool = False) -> None:
        """What is due after a step: first the evaluation, as what it finds is saved with the state."""
        step = self.session.position.step
        self._evaluation = None
        if self.session.is_rounded_at(step):
            # A function of the step alone, on all ranks: whether this save is then taken, or fails, is no matter.
            self.beat.at(Phase.SAVE, step)
            self.session.engine.round_state()
        if self.evaluator is not None and self.evaluator.is_due(step) and not stop:
            self._evaluate(self.evaluator)
        if step % self.config.checkpoint.interval == 0:
            self._save()

    def _evaluate(self, evaluator: Evaluator) -> None:
        """Evaluate the state that the run has come to (collective)."""
        step = self.session.position.step
        self.beat.at(Phase.EVALUATE, step)
        if self.world.rank == 0:
            self.beat.line("evaluation.begun", step=step)
        self.injector.during_evaluation(step)
        with self.watch.aside():
            found = evaluator.evaluate(self.session.engine)
        self._evaluation = found
        if self.world.rank == 0:
            self.beat.line(
                "evaluation.finished",
                step=step,
                generation=self.session.directive.generation,
                precision=self.session.engine.precision,
                at_s=now_s(),
                **dataclasses.asdict(found),
            )

    def _save_last(self) -> None:
        """The state that the run ends with must not be left out because earlier saves are still on their way."""
        self.beat.at(Phase.FINISH, self.session.position.step)  # it waits for the store, which no other save does
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
            meta=self.session.metadata(self._evaluation) if self.world.rank == 0 else None,
        )
        if taken:
            self.last_saved = self.session.position.step
            if self.log is not None:
                self.log.begin()
