"""A fault of a run with a gradient log: killed at step 17, with a checkpoint of step 10 and steps 10 to 16 in the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.decider_desk import Desk
from tests.support.fragile_store import FragileStore
from tests.support.run_kit import data_of, log_steps, lost_process, numeric_fault, small_config

from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.lines import list_generations
from stormsail.platform.messages import CheckpointRef, LogSpan, Tier
from stormsail.supervisor.ladder import observe


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path, small_config(checkpoint={"gradient_log": "store"}))
    made.decider.start()
    made.run_to(17, checkpoints=(10,))
    log_steps(made.store, 1, 8, 17)
    return made


def test_the_run_goes_on_where_the_log_ends_and_the_generation_forks_there(desk: Desk) -> None:
    directive = desk.decide(lost_process(17))
    assert (directive.restore, directive.replay) == (CheckpointRef(1, 10), (LogSpan(1, 10, 17),))
    assert directive.first_step == 17
    made = list_generations(desk.store)[-1]
    assert (made.number, made.parent, made.fork_step) == (2, 1, 17)
    assert desk.ledger.position == 17
    assert desk.ledger.losses_between(0, 40) == tuple((step, 5.0 - 0.01 * step) for step in range(17))


def test_the_checkpoint_stays_on_the_line(desk: Desk) -> None:
    desk.decide(lost_process(17))
    assert [item.ref for item in desk.ledger.candidates()] == [CheckpointRef(1, 10)]


def test_a_second_loss_before_the_next_checkpoint_goes_on_through_both(desk: Desk) -> None:
    desk.decide(lost_process(17))
    desk.run_to(19)
    state, _ = observe(desk.ledger.record.ladder, 18, True, desk.decider.policy)
    desk.ledger.set_ladder(state)
    log_steps(desk.store, 2, 17, 19)
    directive = desk.decide(lost_process(19))
    assert directive.tier is Tier.RESUME
    assert directive.replay == (LogSpan(1, 10, 17), LogSpan(2, 17, 19))


def test_a_supervisor_that_takes_over_uses_it_too(desk: Desk) -> None:
    desk.succeed()
    assert desk.decider.start().replay == (LogSpan(1, 10, 17),)


def test_what_is_missing_of_the_last_step_is_noted(desk: Desk) -> None:
    desk.store.delete(log_key(1, 16, 1))
    assert desk.decide(lost_process(17)).first_step == 16
    noted = data_of(desk.ledger.look((0, 0)).events, "log.found")
    assert (noted["from_step"], noted["why_not_further"]) == (10, "step 16: rank 1 did not log it")


def test_a_numeric_fault_goes_back_without_it(desk: Desk) -> None:
    directive = desk.decide(numeric_fault(17, onset=16))
    assert (directive.restore, directive.replay) == (CheckpointRef(1, 10), ())


def test_inside_an_open_numeric_episode_it_is_not_used(desk: Desk) -> None:
    desk.decide(numeric_fault(17, onset=16))
    desk.run_to(15)
    log_steps(desk.store, 2, 10, 15)
    assert desk.decide(lost_process(15)).replay == ()


def test_tier_two_does_not_use_it(desk: Desk) -> None:
    desk.decide(lost_process(17))
    desk.run_to(17)
    second = desk.decide(lost_process(17))
    assert (second.tier, second.replay) == (Tier.ROLLBACK, ())


def test_what_a_rolled_back_generation_logged_is_not_used(desk: Desk) -> None:
    for _ in range(2):  # the second one is tier 2, and goes back to the initial state
        desk.decide(lost_process(17))
        desk.run_to(desk.ledger.position)
    assert desk.ledger.position == 0
    desk.succeed()
    log_steps(desk.store, 1, 0, 8)
    assert desk.decider.start().replay == ()


def test_a_run_that_keeps_none_looks_for_none(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "other", small_config())
    desk.decider.start()
    desk.run_to(17, checkpoints=(10,))
    log_steps(desk.store, 1, 8, 17)
    assert desk.decide(lost_process(17)).replay == ()


def test_a_log_that_was_refused_at_a_step_is_used_up_to_it(desk: Desk) -> None:
    assert desk.decide(lost_process(17)).replay
    again = desk.decider.decide_again(log_until=13)
    assert (again.tier, again.restore, again.replay) == (Tier.RESUME, CheckpointRef(1, 10), (LogSpan(1, 10, 13),))
    assert [step for step, _ in again.expected_losses] == [13, 14, 15, 16]


def test_a_log_that_was_refused_at_its_first_step_is_not_asked_for_again(desk: Desk) -> None:
    assert desk.decide(lost_process(17)).replay
    again = desk.decider.decide_again(log_until=10)
    assert (again.tier, again.restore, again.replay) == (Tier.RESUME, CheckpointRef(1, 10), ())
    made = list_generations(desk.store)[-1]
    assert (made.parent, made.fork_step) == (1, 10)
    assert [step for step, _ in again.expected_losses] == [10, 11, 12, 13, 14]


def test_a_place_that_cannot_be_listed_costs_the_log_and_not_the_run(desk: Desk, tmp_path: Path) -> None:
    elsewhere = FragileStore()
    elsewhere.go_down()
    desk.decider = desk.hire(log_source=elsewhere)
    assert desk.decide(lost_process(17)).replay == ()
    assert "Nobody answers" in data_of(desk.ledger.look((0, 0)).events, "log.found")["why_not_further"]
