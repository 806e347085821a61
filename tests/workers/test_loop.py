"""The step loop with a real engine and a supervisor that the test plays."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.fragile_store import FragileStore
from tests.support.one_rank import BATCH, CPU, SEQUENCE, digest_of, tiny_config
from tests.support.run_kit import LIMIT_S, within
from tests.support.user_factories import Numbers

from stormsail.platform.checkpoint.commits import load_commit, load_manifest
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.checkpoint.reader import read_shards
from stormsail.platform.checkpoint.rounding import round_shard
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import ShardSpec
from stormsail.platform.checkpoint.writer import commit
from stormsail.platform.config.evaluation import EvalSection
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.platform.diagnosis import ReplayResult
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    FaultKind,
    Heartbeat,
    HeartbeatReply,
    Incident,
    LrEvent,
    Phase,
    StepRow,
    Tier,
    World,
)
from stormsail.platform.step_values import RANK_VALUES, value_of
from stormsail.workers.batches import BatchReader
from stormsail.workers.detect.rules.oscillation import Oscillation
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.evaluation import Evaluation, Evaluator
from stormsail.workers.gradient_log import gradient_log_for
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.inject import DrillError, Injector
from stormsail.workers.loop import StepLoop
from stormsail.workers.session import Session
from stormsail.workers.snapshot import SnapshotWriter
from stormsail.workers.updating import Update

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]  # DeepSpeed's own

STEPS = 12
TRAIN = {"steps": STEPS, "global_batch": BATCH, "micro_batch": BATCH // 2}


class Rank:
    """Rank 0 of a world of one, and all that it says.

    Attributes:
        answers: Directives that the supervisor gives, in order.
    """

    def __init__(
        self,
        store: FragileStore,
        config: RunConfig | None = None,
        *,
        source: Numbers | None = None,
        held_out: Numbers | None = None,
    ) -> None:
        self.config = config or tiny_config()
        self.store = store
        self.answers: list[Directive] = []
        self.incidents: list[Incident] = []
        self.failed: list[CheckpointRef] = []
        self.refused: list[tuple[int, int, str]] = []
        self.missed: list[tuple[int, int, str]] = []
        self.log_broken: list[tuple[int, int, str]] = []
        self.rows: list[StepRow] = []
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.phases: set[Phase] = set()
        self.stop_after: int | None = None
        self.beat = HeartbeatThread(self._hear, attempt=1, rank=0, interval_s=0.001)
        self.snapshots = SnapshotWriter(
            store,
            rank=0,
            world_size=1,
            deliver=self._deliver,
            missed=lambda *what: self.missed.append(what),
            deadline_s=LIMIT_S,
        )
        self.waited_in: list[Phase] = []
        wait = self.snapshots.wait

        def noted_wait(timeout_s: float) -> bool:
            self.waited_in.append(self.beat._phase)
            return wait(timeout_s)

        self.snapshots.wait = noted_wait  # type: ignore[method-assign] # the real one, and the phase that it waits in
        self.log = gradient_log_for(
            self.config, store, rank=0, world_size=1, broken=lambda *what: self.log_broken.append(what)
        )
        reader = BatchReader(
            source or Numbers(),
            rank=0,
            world_size=1,
            global_batch=self.config.train.global_batch,
            micro_batch=self.config.train.micro_batch,
            sequence_tokens=SEQUENCE,
        )
        self.injector = Injector(self.config.drill.faults, rank=0, fired={}, announce=self._announce)
        self.session = Session(
            self.config,
            World(1, 0, 1, "127.0.0.1", 1),
            device=CPU,
            store=store,
            samples=reader.samples,
            supervisor=self,
            beat=self.beat,
            on_generation=self.snapshots.drop_before,
        )
        self.loop = StepLoop(
            self.session,
            source=reader,
            supervisor=self,
            beat=self.beat,
            injector=self.injector,
            snapshots=self.snapshots,
            log=self.log,
            evaluator=None if held_out is None else Evaluator(self.config, held_out, self.session.world, device=CPU),
        )

    def run(self, directive: Directive) -> str:
        """Run to the end of the loop; what was said until then has been heard."""
        try:
            return self.loop.run(directive)
        finally:
            self.snapshots.close(LIMIT_S)
            if self.log is not None:
                self.log.close(LIMIT_S)
            self.beat.close()
            self.session.engine.destroy()

    def incident(self, incident: Incident) -> Directive:
        self.incidents.append(incident)
        return self.answers.pop(0)

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        raise AssertionError((incident, result))

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        assert problem
        self.failed.append(ref)
        return self.answers.pop(0)

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        self.refused.append((generation, step, problem))
        return self.answers.pop(0)

    def _hear(self, beat: Heartbeat) -> HeartbeatReply:
        self.rows += beat.rows
        self.lines += [(kind, dict(fields)) for _, kind, fields in beat.lines]
        self.phases.add(beat.phase)
        wanted = self.stop_after is not None and any(row.step >= self.stop_after for row in self.rows)
        return HeartbeatReply(stop_requested="enough" if wanted else "")

    def _deliver(self, part: RankPart, meta: CheckpointMeta | None, _took_s: float) -> None:
        assert meta is not None
        commit(self.store, [part], meta, parent=None, time_s=time.time())

    def _announce(self, index: int, kind: str, step: int) -> None:
        self.lines.append(("drill.fired", {"index": index, "kind": kind, "step": step}))

    def line(self, kind: str) -> dict[str, Any]:
        return next(fields for said, fields in self.lines if said == kind)

    @property
    def commits(self) -> list[int]:
        return [int(info.key.rpartition("/")[2]) for info in self.store.list("commits/")]

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(row.step, row.loss) for row in self.rows]


START = Directive(1)


@pytest.fixture
def store() -> FragileStore:
    made = FragileStore()
    ensure_format(made)
    return made


@pytest.fixture(scope="module")
def straight(one_rank: object) -> Rank:
    """A run that nothing disturbed."""
    made = FragileStore()
    ensure_format(made)
    rank = Rank(made)
    assert rank.run(START) == "done"
    return rank


@pytest.fixture
def past(straight: Rank) -> FragileStore:
    """What that run stored, to go on from."""
    made = FragileStore()
    for info in straight.store.list():
        made.put(info.key, straight.store.get(info.key))
    return made


class TestUndisturbed:
    def test_every_step_is_one_row(self, straight: Rank) -> None:
        assert [row.step for row in straight.rows] == list(range(STEPS))
        assert {row.outcome for row in straight.rows} == {"applied"}
        assert [row.applied for row in straight.rows] == list(range(1, STEPS + 1))
        assert {row.tokens for row in straight.rows} == {BATCH * SEQUENCE}

    def test_the_loss_falls(self, straight: Rank) -> None:
        losses = [loss for _, loss in straight.losses]
        assert losses[-1] < losses[0]

    def test_the_rates_that_were_used_follow_the_schedule(self, straight: Rank) -> None:
        rates = [row.lr for row in straight.rows]
        assert max(rates) == pytest.approx(straight.config.optimizer.lr)
        assert rates[0] < rates[1]
        assert rates[-1] < rates[2]

    def test_norms_are_clipped_to_the_limit(self, straight: Rank) -> None:
        limit = straight.config.train.clip_norm
        assert limit is not None
        for row in straight.rows:
            assert row.clipped_norm == pytest.approx(min(row.grad_norm, limit))

    def test_checkpoints_are_taken_when_due_and_at_the_end(self, straight: Rank) -> None:
        assert straight.commits == [5, 10, 12]
        assert straight.missed == []

    def test_the_supervisor_knew_what_it_was_busy_with(self, straight: Rank) -> None:
        assert Phase.STEP in straight.phases
        assert straight.waited_in == [Phase.FINISH]  # only this one waits for the store, so no limit is learned from it


class TestWatching:
    def test_how_often_samples_are_taken_changes_no_bit_of_losses_and_state(
        self, straight: Rank, store: FragileStore
    ) -> None:
        rank = Rank(store, tiny_config(detect={"sample_every": 1, "budget": 1.0, "forecast": False}))
        assert rank.run(START) == "done"
        assert rank.losses == straight.losses
        assert [row.grad_norm for row in rank.rows] == [row.grad_norm for row in straight.rows]
        digests = [load_manifest(of.store, CheckpointRef(1, STEPS)).root for of in (rank, straight)]
        assert digests[0] == digests[1]
        assert all("update.rms" in row.values for row in rank.rows[1:])
        assert all("activation.max" in row.values and "attention.max_logit" in row.values for row in rank.rows)

    def test_every_value_has_a_name_that_is_known(self, straight: Rank) -> None:
        for row in straight.rows:
            assert [name for name in row.values if value_of(name) is None] == []
            assert set(row.ranks) <= {value.name for value in RANK_VALUES}

    def test_every_row_has_what_is_measured_at_every_step(self, straight: Rank) -> None:
        always = set.intersection(*({*row.values} for row in straight.rows))
        assert {"clip.factor", "updates.skipped", "time.data_s", "time.compute_s", "time.vitals_s"} <= always
        assert all(row.values["time.vitals_s"] > 0.0 for row in straight.rows[1:])
        assert all(row.values["time.compute_s"] > 0.0 for row in straight.rows)
        assert {row.values["loss_scale"] for row in straight.rows} == {1.0}
        assert {row.values["updates.overflowed"] for row in straight.rows} == {0.0}

    def test_the_gradient_log_leaves_alone_what_the_sending_thread_fills_in(self, straight: Rank) -> None:
        class Growing(dict[str, float]):
            def items(self) -> Any:
                raise RuntimeError("dictionary changed size during iteration")

        row = dataclasses.replace(straight.rows[3], values=Growing())
        facts = straight.loop._facts(3, Update("applied", 1.0), row)
        assert (facts.row["step"], facts.row["loss"], facts.row["values"]) == (3, row.loss, {})

    def test_the_rules_know_how_long_one_pass_over_the_data_is(self, straight: Rank) -> None:
        known = [rule.data_period for rule in straight.session.policy.rules if isinstance(rule, Oscillation)]
        assert known == [4096 // straight.session.config.train.global_batch]

    def test_a_sampled_row_has_the_layer_groups(self, straight: Rank) -> None:
        first = straight.rows[0].values
        groups = {"embed", "blocks.0", "norm"}
        assert {name.removeprefix("norm.") for name in first if name.startswith("norm.")} >= groups
        norm = math.sqrt(sum(first[f"norm.{group}"] ** 2 for group in groups))
        assert norm == pytest.approx(straight.rows[0].grad_norm)
        assert 0.0 <= first["accuracy.tokens"] <= 1.0
        assert "attention.max_logit.blocks.0" in first
        assert "activation.max.norm" in first
        assert "norm.embed" not in straight.rows[1].values

    def test_a_model_that_tells_nothing_has_no_such_values(self, store: FragileStore) -> None:
        factory = {"factory": "tests.support.user_factories:silent_model", "args": {"vocab_size": 32}}
        rank = Rank(store, tiny_config(model=factory))
        assert rank.run(START) == "done"
        values = rank.rows[0].values
        assert "accuracy.tokens" not in values
        assert "attention.max_logit" not in values
        assert values["activation.max.table"] > 0.0

    def test_a_gradient_norm_out_of_its_range_is_clipped_to_its_median(self, store: FragileStore) -> None:
        limits = {"least": 3, "ratio": 1.0001, "z": 0.01}
        rank = Rank(store, tiny_config(detect={"norm_precursor": limits}, train={**TRAIN, "clip_norm": None}))
        assert rank.run(START) == "done"
        flagged = [row for row in rank.rows if row.flagged]
        assert flagged
        assert all(row.clipped_norm < row.grad_norm for row in flagged)
        assert all(row.values["clip.factor"] < 1.0 for row in flagged)
        assert rank.line("spike.watch")["detector"] == "norm-precursor"

    def test_or_its_update_is_skipped(self, store: FragileStore) -> None:
        limits = {"least": 3, "ratio": 1.0001, "z": 0.01}
        rank = Rank(store, tiny_config(detect={"norm_precursor": limits, "on_watch": "skip"}))
        assert rank.run(START) == "done"
        skipped = [row for row in rank.rows if row.outcome == "skipped"]
        assert skipped
        assert rank.rows[-1].applied == STEPS - len(skipped)
        assert rank.rows[-1].values["updates.skipped"] == len(skipped)


class EvaluatedRank(Rank):
    """One that is evaluated on samples that take 1000 s each, by the clock of its steps.

    Attributes:
        places: Where it said that it was.
        lasted_s: How long the step before each step had lasted.
        killed: Where a drill would have killed it.
    """

    def __init__(self, store: FragileStore, config: RunConfig) -> None:
        self.places: list[tuple[Phase, int]] = []
        self.lasted_s: list[float] = []
        self.killed: list[tuple[Phase, int]] = []
        self.late_s = 0.0
        super().__init__(store, config, held_out=SlowNumbers(50, self))

    def run(self, directive: Directive) -> str:
        at, begin = self.beat.at, self.loop.watch.begin

        def noted_at(phase: Phase, step: int, *, generation: int | None = None, rank: int | None = None) -> None:
            self.places.append((phase, step))
            at(phase, step, generation=generation, rank=rank)

        def noted_begin() -> None:
            begin()
            self.lasted_s.append(self.loop.watch.before.get("step", 0.0))

        self.beat.at, self.loop.watch.begin = noted_at, noted_begin  # type: ignore[method-assign] # the real ones, noted
        with pytest.MonkeyPatch.context() as patch:
            clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + self.late_s)
            patch.setattr("stormsail.workers.stopwatch.time", clock)
            return super().run(directive)


class SlowNumbers(Numbers):
    def __init__(self, samples: int, rank: EvaluatedRank) -> None:
        super().__init__(samples)
        self.rank = rank

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.rank.late_s += 1000.0
        return super().sample(index)


class TestEvaluation:
    @pytest.fixture(scope="class")
    def evaluated(self, one_rank: object) -> EvaluatedRank:
        """The undisturbed run, but that it is evaluated; a drill would kill it in that."""
        made = FragileStore()
        ensure_format(made)
        drill = {"faults": [{"kind": "kill", "step": 10, "during": "evaluate"}]}
        rank = EvaluatedRank(made, tiny_config(eval={"every_steps": 5, "samples": 7}, drill=drill))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "kill", lambda _pid, _signal: rank.killed.append(rank.places[-1]))
            assert rank.run(START) == "done"
        return rank

    def test_it_changes_no_bit_of_the_run(self, evaluated: Rank, straight: Rank) -> None:
        assert evaluated.losses == straight.losses
        assert [row.grad_norm for row in evaluated.rows] == [row.grad_norm for row in straight.rows]
        assert [row.batch for row in evaluated.rows] == [row.batch for row in straight.rows]
        assert _root(evaluated, 1) == _root(straight, 1)

    def test_it_takes_place_when_due_and_at_the_end_and_is_said_once(self, evaluated: Rank) -> None:
        said = [fields for kind, fields in evaluated.lines if kind == "evaluation.finished"]
        assert [fields["step"] for fields in said] == [5, 10, 12]
        assert [fields["step"] for kind, fields in evaluated.lines if kind == "evaluation.begun"] == [5, 10, 12]
        assert {fields["samples"] for fields in said} == {7}
        assert {fields["tokens"] for fields in said} == {7 * SEQUENCE}
        losses = [fields["loss"] for fields in said]
        assert losses == sorted(losses, reverse=True)

    def test_the_loss_belongs_to_the_state_that_is_saved_after_it(self, evaluated: Rank, straight: Rank) -> None:
        told = [fields for kind, fields in evaluated.lines if kind == "evaluation.finished"]
        said = {fields["step"]: fields["loss"] for fields in told}
        for step in (5, 10, 12):
            ref = CheckpointRef(1, step)
            assert load_commit(evaluated.store, ref).eval_loss == said[step]
            assert load_commit(evaluated.store, ref).eval_set == told[0]["eval_set"]
            assert load_manifest(evaluated.store, ref).meta.eval_loss == said[step]
            assert load_commit(straight.store, ref).eval_loss is None

    def test_it_is_a_phase_between_a_step_and_its_save(self, evaluated: EvaluatedRank) -> None:
        place = evaluated.places.index((Phase.EVALUATE, 5))
        assert evaluated.places[place - 1 : place + 3] == [
            (Phase.STEP, 4),
            (Phase.EVALUATE, 5),
            (Phase.SAVE, 5),
            (Phase.STEP, 5),
        ]
        assert evaluated.places[-3:] == [(Phase.EVALUATE, 12), (Phase.FINISH, 12), (Phase.SAVE, 12)]

    def test_a_drill_can_kill_in_it(self, evaluated: EvaluatedRank) -> None:
        assert evaluated.killed == [(Phase.EVALUATE, 10)]
        assert evaluated.line("drill.fired")["step"] == 10

    def test_its_time_belongs_to_no_step(self, evaluated: EvaluatedRank) -> None:
        assert evaluated.late_s == 3 * 7 * 1000.0
        assert max(evaluated.lasted_s) < 1000.0
        assert max(row.step_s for row in evaluated.rows) < 1000.0

    def test_whoever_asked_for_a_stop_does_not_wait_for_it(self, store: FragileStore) -> None:
        rank = Rank(store, tiny_config(eval={"every_steps": 1}), held_out=Numbers(2))
        rank.stop_after = 3
        assert rank.run(START) == "stopped"
        last = rank.session.position.step
        assert [fields["step"] for kind, fields in rank.lines if kind == "evaluation.finished"] == list(range(1, last))


def test_a_resumed_run_repeats_the_same_bits(straight: Rank, past: FragileStore) -> None:
    rank = Rank(past)
    directive = Directive(
        2, Tier.RESUME, CheckpointRef(1, 5), expected_losses=tuple(straight.losses[5:8]), exact=True, reason="killed"
    )
    assert rank.run(directive) == "done"
    assert rank.incidents == []
    assert rank.losses == straight.losses[5:]
    assert [row.batch for row in rank.rows] == [row.batch for row in straight.rows[5:]]
    assert rank.line("state.restored")["ref_step"] == 5


def test_a_state_that_is_not_the_one_that_was_saved_is_noticed_at_the_first_step(
    straight: Rank, past: FragileStore
) -> None:
    rank = Rank(past)
    rank.answers = [Directive(3, stop_reason="a person must look")]
    wrong = tuple((step, loss + 1e-4) for step, loss in straight.losses[5:8])
    directive = Directive(2, Tier.RESUME, CheckpointRef(1, 5), expected_losses=wrong, exact=True)
    assert rank.run(directive) == "stopped"
    assert [(found.kind, found.step) for found in rank.incidents] == [(FaultKind.RESUME_FAULT, 5)]
    assert rank.rows == []


def test_a_request_to_stop_saves_the_state(straight: Rank, store: FragileStore) -> None:
    rank = Rank(store)
    rank.stop_after = 3
    assert rank.run(START) == "stopped"
    step = rank.session.position.step
    assert 4 <= step < STEPS
    assert rank.commits[-1] == step
    assert rank.losses == straight.losses[:step]


def test_the_run_may_end_at_an_earlier_step(store: FragileStore) -> None:
    rank = Rank(store)
    assert rank.run(Directive(1, stop_step=7)) == "done"
    assert rank.commits == [5, 7]


def test_the_last_state_is_saved_however_slow_the_store_was(store: FragileStore) -> None:
    """Two copies that are still on their way leave a third one out; the last one has to wait for its turn."""
    rank = Rank(store, tiny_config(checkpoint={"every_steps": 1, "deadline_s": LIMIT_S}))
    deliver = rank.snapshots._deliver

    def slow(part: RankPart, meta: CheckpointMeta | None, took_s: float) -> None:
        within(lambda: rank.loop.session.position.step == STEPS)
        deliver(part, meta, took_s)

    rank.snapshots._deliver = slow
    assert rank.run(START) == "done"
    assert rank.missed
    assert rank.commits[-1] == STEPS


class TestRounding:
    @pytest.fixture(scope="class")
    def config(self) -> RunConfig:
        return tiny_config(checkpoint={"every_steps": 5, "deadline_s": LIMIT_S, "rounding": True})

    @pytest.fixture(scope="class")
    def rounded(self, one_rank: object, config: RunConfig) -> Rank:
        """A run in rounding mode that nothing disturbed."""
        made = FragileStore()
        ensure_format(made)
        rank = Rank(made, config)
        assert rank.run(START) == "done"
        return rank

    def test_what_is_stored_at_checkpoint_steps_has_fewer_bits(self, rounded: Rank, straight: Rank) -> None:
        assert rounded.losses[:5] == straight.losses[:5]
        assert rounded.losses[5:] != straight.losses[5:]
        for step, kept in ((5, True), (10, True), (12, False)):
            manifest = load_manifest(rounded.store, CheckpointRef(1, step))
            specs = [
                ShardSpec(tensor.name, component, tensor.shape, 0, int(np.prod(tensor.shape)))
                for tensor in manifest.tensors
                for component in tensor.components
            ]
            shards = read_shards(rounded.store, manifest, specs)
            assert all(np.array_equal(shard.words, round_shard(shard).words) for shard in shards) is kept

    def test_what_is_evaluated_is_the_state_that_is_saved(
        self, rounded: Rank, config: RunConfig, store: FragileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        roots: list[str] = []
        evaluate = Evaluator.evaluate

        def noted(self: Evaluator, engine: ZeroEngine) -> Evaluation:
            roots.append(digest_of(engine.copy_state()).hex)
            return evaluate(self, engine)

        monkeypatch.setattr(Evaluator, "evaluate", noted)
        rank = Rank(store, config.model_copy(update={"eval": EvalSection(every_steps=5)}), held_out=Numbers(3))
        assert rank.run(START) == "done"
        assert roots == [load_manifest(store, CheckpointRef(1, step)).root for step in (5, 10, STEPS)]
        assert _root(rank, 1) == _root(rounded, 1)

    def test_a_resumed_run_repeats_the_same_bits(self, rounded: Rank, config: RunConfig) -> None:
        rank = Rank(rounded.store, config)
        assert rank.run(Directive(2, Tier.RESUME, CheckpointRef(1, 5))) == "done"
        assert rank.losses == rounded.losses[5:]
        assert _root(rank, 2) == _root(rounded, 1)

    def test_a_run_whose_saves_are_left_out_or_fail_holds_the_same_bits(
        self, rounded: Rank, config: RunConfig, store: FragileStore
    ) -> None:
        rank = Rank(store, config)
        take = rank.snapshots.take

        def refused(engine: ZeroEngine, *, generation: int, step: int, meta: CheckpointMeta | None) -> bool:
            return step == STEPS and take(engine, generation=generation, step=step, meta=meta)

        rank.snapshots.take = refused  # type: ignore[method-assign]  # a store that is too slow, without its wait
        assert rank.run(START) == "done"
        assert rank.commits == [STEPS]
        assert _root(rank, 1) == _root(rounded, 1)

    def test_a_stop_between_checkpoint_steps_changes_no_bit(
        self, rounded: Rank, config: RunConfig, store: FragileStore
    ) -> None:
        assert Rank(store, config).run(Directive(1, stop_step=7)) == "done"
        rank = Rank(store, config)
        assert rank.run(Directive(2, Tier.RESUME, CheckpointRef(1, 7))) == "done"
        assert rank.losses == rounded.losses[7:]
        assert _root(rank, 2) == _root(rounded, 1)


def _root(rank: Rank, generation: int) -> str:
    """The digest of the state that a run ended with."""
    return load_manifest(rank.store, CheckpointRef(generation, STEPS)).root


def test_a_gradient_that_is_not_finite_is_dropped_and_the_batch_counts(straight: Rank, store: FragileStore) -> None:
    rank = Rank(store, tiny_config(drill={"faults": [{"kind": "nonfinite", "step": 4}]}))
    assert rank.run(START) == "done"
    row = rank.rows[4]
    assert (row.outcome, row.applied, row.lr) == ("dropped", 4, 0.0)
    assert rank.rows[-1].applied == STEPS - 1
    assert rank.losses[:5] == straight.losses[:5]
    assert all(np.isfinite(loss) for _, loss in rank.losses)
    dropped = rank.line("update.dropped")
    assert (dropped["step"], dropped["count"], dropped["rank"]) == (4, 1, 0)
    assert dropped["first_parameter"]


def test_too_many_of_them_are_an_incident_and_what_is_decided_is_obeyed(store: FragileStore) -> None:
    """Tier 3: the window is computed in FP32, where the fault does not happen, and then training goes back to bf16."""
    faults = [{"kind": "bf16_overflow", "step": 6, "steps": 3}]
    rank = Rank(store, tiny_config(drill={"faults": faults}, nonfinite={"patience": 2}))
    ref = CheckpointRef(1, 5)
    rank.answers = [Directive(2, Tier.FP32_REPLAY, ref, precision="fp32", fp32_until=10)]
    assert rank.run(START) == "done"
    incident = rank.incidents[0]
    assert (incident.kind, incident.step, incident.onset, incident.generation) == (FaultKind.NONFINITE, 7, 6, 1)
    assert incident.evidence["parameter"]
    replayed = [row for row in rank.rows if row.generation == 2]
    assert [row.step for row in replayed] == list(range(5, STEPS))
    assert [row.precision for row in replayed] == ["fp32"] * 5 + ["bf16"] * 2
    assert {row.outcome for row in replayed} == {"applied"}
    assert rank.line("replay.finished")["step"] == 10
    assert rank.line("replay.finished")["window_dtype"] == "float32"
    assert rank.commits[-1] == STEPS


def test_a_decided_reduction_is_in_the_rate_that_the_optimizer_used(straight: Rank, past: FragileStore) -> None:
    rank = Rank(past)
    event = LrEvent(step=5, factor=0.8, generation=2)
    rank.run(Directive(2, Tier.ROLLBACK, CheckpointRef(1, 5), lr_events=(event,)))
    for row, before in zip(rank.rows, straight.rows[5:], strict=True):
        assert row.lr == pytest.approx(0.8 * before.lr)
        assert row.lr_factor == 0.8


def test_samples_that_are_to_be_skipped_are_not_read(straight: Rank, past: FragileStore) -> None:
    rank = Rank(past)
    skip = ((5 * BATCH, 6 * BATCH),)
    rank.run(Directive(2, Tier.RESUME, CheckpointRef(1, 5), skip=skip))
    assert [row.batch for row in rank.rows[:-1]] == [row.batch for row in straight.rows[6:]]


def test_a_checkpoint_that_cannot_be_loaded_is_told_and_the_next_one_taken(past: FragileStore) -> None:
    rank = Rank(past)
    rank.answers = [Directive(3, Tier.RESUME, CheckpointRef(1, 10))]
    assert rank.run(Directive(2, Tier.RESUME, CheckpointRef(1, 99))) == "done"
    assert rank.failed == [CheckpointRef(1, 99)]
    assert [row.step for row in rank.rows] == [10, 11]


def test_an_empty_batch_moves_nothing_but_the_step(store: FragileStore) -> None:
    config = tiny_config()
    order = DataOrder(4096, config.seed, ())
    blank = {int(index) for index in order.sample_ids(3, BATCH)}
    rank = Rank(store, config, source=Blanks(blank))
    assert rank.run(START) == "done"
    assert (rank.rows[3].outcome, rank.rows[3].applied, rank.rows[3].tokens) == ("empty", 3, 0)
    assert rank.rows[-1].applied == STEPS - 1
    assert rank.line("step.empty") == {"step": 3}


def test_an_error_of_the_users_code_leaves_the_loop_as_it_is(store: FragileStore) -> None:
    rank = Rank(store, tiny_config(drill={"faults": [{"kind": "raise", "step": 4}]}))
    with pytest.raises(DrillError):
        rank.run(START)
    assert [row.step for row in rank.rows] == [0, 1, 2, 3]


class Blanks(Numbers):
    """Numbers of which some samples hold no real token."""

    def __init__(self, blank: set[int]) -> None:
        super().__init__()
        self._holes = blank

    def sample(self, index: int, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens, targets, mask = super().sample(index)
        return tokens, targets, mask * (index not in self._holes)


def test_in_shadow_mode_training_goes_on_and_bad_gradients_are_still_never_applied(store: FragileStore) -> None:
    config = tiny_config(
        drill={"faults": [{"kind": "nonfinite", "step": 4, "steps": 4}]},
        nonfinite={"patience": 2},
        ladder={"shadow": True},
    )
    rank = Rank(store, config)
    assert rank.run(START) == "done"
    assert rank.incidents == []
    assert [row.step for row in rank.rows if row.outcome == "dropped"] == [4, 5, 6, 7]
    assert rank.rows[-1].applied == STEPS - 4
    told = [fields for kind, fields in rank.lines if kind == "incident.shadowed"]
    assert [(fields["step"], fields["onset"], fields["kind"]) for fields in told] == [(5, 4, FaultKind.NONFINITE)]
