"""A replay on a real engine: the steps come again bit for bit, and the run is afterwards what it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.one_rank import BATCH, CPU, SEQUENCE, save, tiny_config
from tests.support.user_factories import Numbers

from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.diagnosis import ReplayPlan, ReplayResult, TraceRow, Variant
from stormsail.platform.errors import FencedError, StateMismatchError
from stormsail.platform.messages import CheckpointRef, Directive, Heartbeat, HeartbeatReply, Incident, Phase, World
from stormsail.workers import deepspeed_private
from stormsail.workers import replay_live as module
from stormsail.workers.batches import BatchReader
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.inject import Injector
from stormsail.workers.measure import measure_gradients
from stormsail.workers.replay_live import Live, diagnose, live_sums, park, put_back
from stormsail.workers.session import Session

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.filterwarnings("ignore"),  # DeepSpeed's own
]

SAVED, ONSET, NOW = 20, 24, 27
REF = CheckpointRef(1, SAVED)


class _Nobody:
    def incident(self, incident: Incident) -> Directive:
        raise AssertionError(incident)

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        raise AssertionError(incident, result)

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        raise AssertionError(ref, problem)

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        raise AssertionError(generation, problem)


class Run:
    """A run of one rank that has come to step 27, with a checkpoint at 20 and a fault from 24 on."""

    def __init__(self) -> None:
        faults = [{"kind": "lr_instability", "step": ONSET, "steps": 20, "scale": 50}]
        self.config = tiny_config(train={"steps": 40, "global_batch": BATCH}, drill={"faults": faults})
        self.store = FragileStore()
        ensure_format(self.store)
        self.beat = HeartbeatThread(_refuse, attempt=1, rank=0, interval_s=60.0)
        self.source = BatchReader(
            Numbers(),
            rank=0,
            world_size=1,
            global_batch=BATCH,
            micro_batch=self.config.train.micro_batch,
            sequence_tokens=SEQUENCE,
        )
        self.session = Session(
            self.config,
            World(1, 0, 1, "127.0.0.1", 1),
            device=CPU,
            store=self.store,
            samples=self.source.samples,
            supervisor=_Nobody(),
            beat=self.beat,
            on_generation=lambda _generation: None,
        )
        self.session.obey(Directive(generation=1))
        self.fired: list[int] = []
        self.injector = Injector(
            self.config.drill.faults, rank=0, fired={}, announce=lambda index, _kind, _step: self.fired.append(index)
        )
        self.phases: list[tuple[Phase, int]] = []
        self.undo: Callable[[], None] = lambda: None
        self.rows: list[TraceRow] = []
        self.train(SAVED)
        save(self.session.engine, self.store, REF)
        self.train(NOW)

    def train(self, until: int) -> None:
        runner = Live(self.plan(), self.session, self.source, self.injector.unheard(), self._at)
        for step in range(len(self.rows), until):
            self.rows.append(runner.step(step, leave_out=(), lr_factor=1.0))

    def plan(self, *, budget: int = 50) -> ReplayPlan:
        return ReplayPlan(
            restore=REF,
            start=SAVED,
            window=(ONSET - 2, ONSET + 6),
            calm=tuple(self.rows[:ONSET]),
            recorded=tuple(self.rows[SAVED:]),
            onset=ONSET,
            budget_steps=budget,
        )

    def diagnose(self, *, budget: int = 50) -> ReplayResult:
        plan = self.plan(budget=budget)
        return diagnose(plan, self.session, source=self.source, injector=self.injector, at=self._at)

    def look(self, step: int) -> tuple[float, float]:
        """Loss and gradient norm of a step from here, without taking it."""
        engine = self.session.engine
        scale = 1.0 / self.source.nominal_tokens
        batches = self.source.micro_batches(step, self.session.order)
        loss = sum(engine.forward_backward(batch, scale, last=batch is batches[-1]) for batch in batches)
        norm = sum(measure_gradients(engine).squares)
        engine.drop()
        return loss, norm

    def _at(self, phase: Phase, step: int) -> None:
        self.phases.append((phase, step))


def _refuse(beat: Heartbeat) -> HeartbeatReply:
    raise ConnectionError("nobody listens")


@pytest.fixture(scope="module")
def run(one_rank: World) -> Iterator[Run]:
    made = Run()
    yield made
    made.beat.close(timeout_s=5.0)
    made.session.engine.destroy()


@pytest.mark.slow
def test_the_same_steps_give_the_same_bits_and_the_state_is_afterwards_what_it_was(run: Run) -> None:
    engine = run.session.engine
    before, scalars = live_sums(engine), engine.optimizer_scalars()
    result = run.diagnose()
    same = result.outcomes[0]
    assert not result.problem
    assert [outcome.variant for outcome in result.outcomes][:2] == [Variant.SAME, Variant.SMALLER_LR]
    recorded = [(row.loss, row.grad_norm) for row in run.rows[SAVED:]]
    assert [(row.loss, row.grad_norm) for row in (*result.prefix, *same.rows)][: len(recorded)] == recorded
    assert live_sums(run.session.engine) == before
    assert run.session.engine.optimizer_scalars() == scalars


@pytest.mark.slow
def test_the_budget_is_kept(run: Run) -> None:
    assert run.diagnose(budget=20).steps <= 20
    refused = run.diagnose(budget=8)
    assert "diagnose.budget_steps is 8" in refused.problem
    assert refused.steps == 0


@pytest.mark.slow
def test_drills_act_in_a_replay_but_are_not_counted(run: Run) -> None:
    run.diagnose()
    assert run.fired == []


@pytest.mark.slow
def test_after_a_replay_the_engine_has_the_runs_precision_again(run: Run) -> None:
    engine = run.session.engine
    before = live_sums(engine)
    parked = park(engine)
    run.session.rebuild("fp32")
    run.session.rebuild("bf16")
    put_back(run.session.engine, parked)
    assert (run.session.engine.precision, live_sums(run.session.engine)) == ("bf16", before)


@pytest.mark.slow
def test_a_rank_whose_state_is_not_what_it_was_is_named(run: Run) -> None:
    engine = run.session.engine
    parked = park(engine)
    wrong = dataclasses.replace(parked, sums=(parked.sums[0] + 1, *parked.sums[1:]))
    with pytest.raises(StateMismatchError, match="rank 0"):
        put_back(engine, wrong)
    put_back(engine, parked)


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_loaded_is_a_problem_and_no_harm(run: Run) -> None:
    before = live_sums(run.session.engine)
    plan = dataclasses.replace(run.plan(), restore=CheckpointRef(9, SAVED))
    result = diagnose(plan, run.session, source=run.source, injector=run.injector, at=lambda _phase, _step: None)
    assert result.problem
    assert live_sums(run.session.engine) == before


def _with_wrong_precision(session: Session) -> None:
    session.rebuild("fp32")
    raise MemoryError("no room for a second engine")


def _raises(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("a part broke\nin two lines")


class Breaking:
    """Ways in which a part of a replay fails, each at another point of it."""

    @staticmethod
    def loading(run: Run, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(run.session, "load_state", _raises)

    @staticmethod
    def inside_the_model(run: Run, patch: pytest.MonkeyPatch) -> None:
        """Weights are gathered and micro-batches are half done then; the hook goes with the engine."""
        handle = run.session.engine.module.blocks[0].register_forward_hook(_raises)  # type: ignore[index,union-attr]
        run.undo = handle.remove  # harmless where the engine is gone

    @staticmethod
    def inside_the_backward(run: Run, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(deepspeed_private.OwnGradients, "_look", _raises)

    @staticmethod
    def changing_the_precision(run: Run, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Live, "back", lambda live, _precision: _with_wrong_precision(live._session))


@pytest.mark.slow
@pytest.mark.parametrize("way", [name for name in vars(Breaking) if not name.startswith("_")])
def test_whatever_breaks_a_replay_off_is_a_reason_and_leaves_the_run_what_it_was(
    run: Run, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = run.session.engine
    before, scalars = live_sums(engine), engine.optimizer_scalars()
    expected = run.look(NOW)
    with monkeypatch.context() as patch:
        getattr(Breaking, way)(run, patch)
        result = run.diagnose()
    run.undo()
    assert result.broken
    assert result.problem.startswith("it broke off: ")
    assert "\n" not in result.problem
    assert not result.outcomes
    engine = run.session.engine
    assert (live_sums(engine), engine.optimizer_scalars(), engine.precision) == (before, scalars, "bf16")
    assert run.look(NOW) == expected


@pytest.mark.slow
def test_what_breaks_off_one_rank_alone_ends_it_as_it_would_end_a_step(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = park(run.session.engine)
    monkeypatch.setattr(module, "all_come_here", lambda _place, *, limit_s: limit_s < 0.0)
    monkeypatch.setattr(run.session, "load_state", _raises)
    with pytest.raises(RuntimeError, match="a part broke"):
        run.diagnose()
    put_back(run.session.engine, parked)


@pytest.mark.slow
def test_a_fence_ends_the_process_whatever_it_was_doing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(*_args: object, **_kwargs: object) -> None:
        raise FencedError("a newer attempt writes here")

    parked = park(run.session.engine)
    monkeypatch.setattr(Live, "score", fenced)
    with pytest.raises(FencedError):
        run.diagnose()
    put_back(run.session.engine, parked)


@pytest.mark.slow
def test_a_replay_says_where_it_is(run: Run) -> None:
    run.phases.clear()
    run.diagnose()
    assert {phase for phase, _ in run.phases} == {Phase.REPLAY}
