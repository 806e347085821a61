"""What a rank holds of the run, brought where a directive says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.one_rank import CPU, SEQUENCE, digest_of, save, tiny_config, train

from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.diagnosis import ReplayResult
from stormsail.platform.errors import InternalError
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    Heartbeat,
    HeartbeatReply,
    Incident,
    LrEvent,
    Tier,
    World,
)
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.session import MAX_RESTORE_TRIES, Position, Session

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]  # DeepSpeed's own

REF = CheckpointRef(1, 3)


class Post:
    """A session, its store, and all that it said."""

    def __init__(self) -> None:
        self.store = FragileStore()
        ensure_format(self.store)
        self.answers: list[Directive] = []
        self.failed: list[tuple[CheckpointRef, str]] = []
        self.generations: list[int] = []
        self.lines: dict[str, dict[str, Any]] = {}
        self.beat = HeartbeatThread(self._hear, attempt=1, rank=0, interval_s=0.001)
        self.session = Session(
            tiny_config(journal={"deadline_s": 0.1}),
            World(1, 0, 1, "127.0.0.1", 1),
            device=CPU,
            store=self.store,
            samples=4096,
            supervisor=self,
            beat=self.beat,
            on_generation=self.generations.append,
        )

    def incident(self, incident: Incident) -> Directive:
        raise AssertionError(incident)

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        raise AssertionError((incident, result))

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        self.failed.append((ref, problem))
        return self.answers.pop(0)

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        raise AssertionError(problem)

    def _hear(self, beat: Heartbeat) -> HeartbeatReply:
        self.lines |= {kind: dict(fields) for _, kind, fields in beat.lines}
        return HeartbeatReply()

    def said(self, kind: str) -> dict[str, Any]:
        self.beat.flush()
        return self.lines[kind]


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    made.beat.close()
    if made.session._engine is not None:
        made.session.engine.destroy()


def test_before_the_first_directive_there_is_no_engine(post: Post) -> None:
    with pytest.raises(InternalError, match="before a directive was obeyed"):
        _ = post.session.engine


def test_a_plain_start_builds_the_initial_state_and_restores_nothing(post: Post) -> None:
    post.session.obey(Directive(1))
    post.beat.flush()
    assert post.session.position == Position()
    assert post.session.engine.precision == "bf16"
    assert post.lines == {}
    assert post.generations == [1]


def test_a_rollback_brings_state_and_position_back(post: Post) -> None:
    session = post.session
    session.obey(Directive(1))
    train(session.engine, range(3))
    saved = save(session.engine, post.store, REF)
    train(session.engine, range(2))
    engine = session.engine
    session.obey(Directive(2, Tier.RESUME, REF))
    assert session.engine is engine
    assert digest_of(engine.copy_state()) == saved.root_digest
    assert session.position == Position(3, 3, 3 * 4 * SEQUENCE)
    said = post.said("state.restored")
    assert said["places"] == {"store": sum(shard.values.nbytes for shard in post.session.engine.copy_state())}
    assert (said["ref_generation"], said["ref_step"], said["compute_dtype"]) == (1, 3, "bfloat16")


def test_going_back_to_the_initial_state_builds_it_anew(post: Post) -> None:
    session = post.session
    session.obey(Directive(1))
    first = digest_of(session.engine.copy_state())
    train(session.engine, range(2))
    session.obey(Directive(2, Tier.RESUME))
    assert digest_of(session.engine.copy_state()) == first
    assert post.said("state.restored")["ref_generation"] is None


def test_the_fp32_window_takes_the_state_there_and_back(post: Post) -> None:
    session = post.session
    session.obey(Directive(1))
    train(session.engine, range(3))
    saved = save(session.engine, post.store, REF)
    session.obey(Directive(2, Tier.FP32_REPLAY, REF, precision="fp32", fp32_until=5))
    assert session.engine.precision == "fp32"
    assert digest_of(session.engine.copy_state()) == saved.root_digest
    session.leave_fp32()
    assert session.engine.precision == "bf16"
    assert digest_of(session.engine.copy_state()) == saved.root_digest
    assert (session.directive.fp32_until, session.directive.precision) == (None, "bf16")
    assert post.said("replay.finished")["window_dtype"] == "float32"


def test_a_directive_to_stop_leaves_everything_as_it_is(post: Post) -> None:
    session = post.session
    session.obey(Directive(1))
    train(session.engine, range(1))
    before = digest_of(session.engine.copy_state())
    session.obey(Directive(2, Tier.EXHAUSTED, stop_reason="used up"))
    assert digest_of(session.engine.copy_state()) == before
    assert session.directive.stop_reason == "used up"


def test_a_checkpoint_that_is_not_there_is_told_and_the_answer_obeyed(post: Post) -> None:
    post.session.obey(Directive(1))
    save(post.session.engine, post.store, REF)
    post.answers = [Directive(3, Tier.RESUME, REF)]
    post.session.obey(Directive(2, Tier.RESUME, CheckpointRef(1, 9)))
    assert [ref for ref, _ in post.failed] == [CheckpointRef(1, 9)]
    assert post.session.directive.generation == 3
    assert post.generations == [1, 2, 3]


def test_it_does_not_try_for_ever(post: Post) -> None:
    post.answers = [Directive(number, Tier.RESUME, CheckpointRef(1, 9)) for number in range(3, 40)]
    with pytest.raises(InternalError, match="in a row could not be loaded"):
        post.session.obey(Directive(2, Tier.RESUME, CheckpointRef(1, 9)))
    assert len(post.failed) == MAX_RESTORE_TRIES + post.session.config.checkpoint.max_deltas


@pytest.mark.parametrize(("threads", "exact"), [(1, True), (2, False)])
def test_bits_are_promised_only_for_the_same_number_of_threads(post: Post, threads: int, exact: bool) -> None:
    post.session.obey(Directive(1))
    save(post.session.engine, post.store, REF, threads=threads)
    post.session.obey(Directive(2, Tier.RESUME, REF, expected_losses=((3, 5.0),), exact=True))
    assert (post.session.continuity.check(3, 5.0 + 1e-9) != "") is exact


def test_the_metadata_say_all_that_rolls_back_and_a_copy_of_what_was_decided(post: Post) -> None:
    event = LrEvent(step=3, factor=0.8, generation=2)
    post.session.obey(Directive(2, Tier.ROLLBACK, lr_events=(event,), skip=((0, 8),)))
    meta = post.session.metadata()
    assert (meta.step, meta.applied, meta.tokens, meta.data_position) == (0, 0, 0, 8)
    assert meta.decided == {
        "lr_events": [{"step": 3, "factor": 0.8, "generation": 2, "released_step": None}],
        "skip": [[0, 8]],
    }
    assert meta.optimizer == post.session.engine.optimizer_scalars()
    assert len(meta.config_digest) == 64
