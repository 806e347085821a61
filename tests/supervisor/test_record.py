"""The record is a pure fold over the journal: any split of the journal gives the same, and so does a new supervisor."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.lines import Generation
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import CheckpointRef, LrEvent
from stormsail.supervisor import record as module
from stormsail.supervisor.ladder_state import LadderState
from stormsail.supervisor.record import CommittedCheckpoint, Record, apply, fold

counts = st.integers(0, 50)


def event(kind: str, number: int = 1, step: int | None = None, **data: Any) -> Event:
    return Event(number, 1000.0 + number, kind, 1, step, 1, data)


def generation_created(number: int, parent: int | None = None, fork_step: int = 0) -> Event:
    return event(
        "generation.created", generation=number, parent=parent, fork_step=fork_step, reason="why", owner="host"
    )


def committed(generation: int, step: int, *, finite: bool = True) -> Event:
    return event("checkpoint.committed", step=step, generation=generation, digest="d", finite=finite)


STATE = LadderState(episodes=2, spent=1, completed=17)

handled: dict[str, st.SearchStrategy[Event]] = {
    "run.started": st.builds(
        lambda text, step: event("run.started", config=text, stop_step=step), st.text("abc"), st.none() | counts
    ),
    "run.continued": st.builds(lambda text: event("run.continued", config=text, stop_step=None), st.text("abc")),
    "attempt.started": st.builds(lambda n: event("attempt.started", attempt=n), counts),
    "world.formed": st.builds(lambda text: event("world.formed", data_digest=text), st.text("abc")),
    "generation.created": st.builds(generation_created, counts, st.none() | counts, counts),
    "ladder.decided": st.builds(
        lambda n: event(
            "ladder.decided",
            state=LadderState(episodes=n).to_json(),
            lr_events=[{"step": n, "factor": 0.8, "generation": 2, "released_step": None}],
            skip=[[n, n + 4]],
        ),
        counts,
    ),
    "episode.closed": st.builds(lambda n: event("episode.closed", state=LadderState(spent=n).to_json()), counts),
    "budgets.reset": st.builds(lambda n: event("budgets.reset", state=LadderState(spent=n).to_json()), counts),
    "checkpoint.committed": st.builds(committed, counts, counts),
    "checkpoint.good": st.builds(lambda g, s: event("checkpoint.good", step=s, generation=g), counts, counts),
    "checkpoint.corrupt": st.builds(lambda g, s: event("checkpoint.corrupt", step=s, generation=g), counts, counts),
    "checkpoint.deleted": st.builds(lambda g, s: event("checkpoint.deleted", refs=[[g, s]]), counts, counts),
    "evaluation.begun": st.builds(lambda step: event("evaluation.begun", step=step), counts),
    "evaluation.finished": st.builds(
        lambda step, loss: event("evaluation.finished", step=step, generation=1, loss=loss, eval_set="a"),
        counts,
        st.none() | st.floats(0, 9),
    ),
    "drill.fired": st.builds(lambda i: event("drill.fired", index=i), counts),
    "run.finished": st.just(event("run.finished", exit_code=0)),
    "run.stopped": st.just(event("run.stopped", exit_code=5)),
    "run.exhausted": st.just(event("run.exhausted", exit_code=4)),
    "run.failed": st.just(event("run.failed", exit_code=6)),
    "stop.requested": st.builds(lambda n: event("stop.requested", reason=f"reason {n}"), counts),
    "spike.watch": st.just(event("spike.watch", severity=7.0)),
}


def test_the_journals_in_these_tests_hold_every_kind_that_is_handled() -> None:
    assert handled.keys() >= module._HANDLERS.keys() | module.OUTCOMES.keys()


@given(st.lists(st.one_of(list(handled.values())), max_size=30), st.integers(0, 30))
def test_folding_in_two_halves_equals_folding_once(events: list[Event], cut: int) -> None:
    assert fold(events[cut:], fold(events[:cut])) == fold(events)


@given(st.lists(st.one_of(list(handled.values())), max_size=30))
def test_folding_leaves_the_record_that_it_began_with_alone(events: list[Event]) -> None:
    before = Record()
    fold(events, before)
    assert before == Record()


def test_an_unknown_kind_changes_nothing() -> None:
    known = fold([event("attempt.started", attempt=3)])
    assert apply(known, event("something.new", attempt=9)) == known


def test_a_start_names_the_configuration_and_forgets_how_an_earlier_one_ended() -> None:
    known = fold(
        [
            event("run.started", config="old", stop_step=60),
            event("run.stopped", exit_code=5),
            event("run.continued", config="new", stop_step=None),
        ]
    )
    assert (known.config, known.stop_step, known.outcome, known.exit_code) == ("new", None, "", 0)


@pytest.mark.parametrize(
    ("kind", "outcome", "code"),
    [
        ("run.finished", "finished", 0),
        ("run.stopped", "stopped", 5),
        ("run.exhausted", "exhausted", 4),
        ("run.failed", "failed", 6),
    ],
)
def test_each_ending_has_its_word_and_its_exit_code(kind: str, outcome: str, code: int) -> None:
    known = fold([event(kind, exit_code=code)])
    assert (known.outcome, known.exit_code) == (outcome, code)


def test_generations_are_kept_with_where_they_forked() -> None:
    known = fold([generation_created(1), generation_created(2, parent=1, fork_step=40)])
    assert known.generation == 2
    assert known.generations == (
        Generation(1, None, 0, "why", "host", 1001.0),
        Generation(2, 1, 40, "why", "host", 1001.0),
    )


def test_a_decision_replaces_ladder_learning_rate_and_skip_list_at_once() -> None:
    known = fold(
        [
            event(
                "ladder.decided",
                state=STATE.to_json(),
                lr_events=[{"step": 40, "factor": 0.8, "generation": 2, "released_step": 120}],
                skip=[[64, 72]],
            )
        ]
    )
    assert known.ladder == STATE
    assert known.lr_events == (LrEvent(40, 0.8, 2, 120),)
    assert known.skip == ((64, 72),)


@pytest.mark.parametrize("kind", ["episode.closed", "budgets.reset"])
def test_what_a_healthy_step_settles_moves_only_the_ladder(kind: str) -> None:
    known = fold([event("attempt.started", attempt=2), event(kind, state=STATE.to_json())])
    assert known == Record(attempt=2, ladder=STATE)


def test_a_commit_is_remembered_with_its_digest_and_whether_it_is_finite() -> None:
    known = fold([committed(1, 10), committed(1, 20, finite=False)])
    assert known.commits == (
        CommittedCheckpoint(CheckpointRef(1, 10), "d", 1001.0, finite=True),
        CommittedCheckpoint(CheckpointRef(1, 20), "d", 1001.0, finite=False),
    )


def test_a_deleted_checkpoint_is_neither_committed_nor_good_any_more() -> None:
    known = fold(
        [
            committed(1, 10),
            committed(1, 20),
            event("checkpoint.good", step=10, generation=1),
            event("checkpoint.good", step=20, generation=1),
            event("checkpoint.deleted", refs=[[1, 10]]),
        ]
    )
    assert [commit.ref.step for commit in known.commits] == [20]
    assert known.good == {CheckpointRef(1, 20)}
    assert known.deleted == {CheckpointRef(1, 10)}


def test_a_damaged_checkpoint_is_known_as_such() -> None:
    known = fold([committed(1, 10), event("checkpoint.corrupt", step=10, generation=1)])
    assert known.corrupt == {CheckpointRef(1, 10)}


def test_drill_faults_are_counted_by_index() -> None:
    known = fold([event("drill.fired", index=1), event("drill.fired", index=0), event("drill.fired", index=1)])
    assert known.fired == ((0, 1), (1, 2))


def test_the_data_are_those_of_the_first_world() -> None:
    known = fold([event("world.formed", data_digest="first"), event("world.formed", data_digest="second")])
    assert known.data_digest == "first"
