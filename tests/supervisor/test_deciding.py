"""From a fault to a directive: what is journalled comes first, and nothing begins while the store cannot hear of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.decider_desk import Desk
from tests.support.run_kit import LIMIT_S, data_of, lost_process, numeric_fault, small_config

from stormsail.platform.checkpoint.keys import generation_key
from stormsail.platform.checkpoint.lines import Generation, create_generation, list_generations
from stormsail.platform.errors import FencedError, StorageError
from stormsail.platform.journal import Journal
from stormsail.platform.messages import CheckpointRef, FaultKind, Tier
from stormsail.supervisor import deciding
from stormsail.supervisor.faults import Described
from stormsail.supervisor.ladder import Fault
from stormsail.supervisor.phases import RunEvent, RunPhase

DECISIONS = ["ladder.decided", "generation.created"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, small_config())


class TestStarting:
    def test_a_generation_that_cannot_be_read_blocks_no_start(self, desk: Desk) -> None:
        """The journal knows what it said; only its number counts, and that stands in its name."""
        desk.decider.start()
        desk.run_to(12, checkpoints=(10,))
        desk.store.put(generation_key(1), b"damaged")
        desk.store.put(generation_key(4), b"claimed by one that died")
        desk.succeed()
        directive = desk.decider.start()
        assert (directive.generation, directive.restore) == (5, CheckpointRef(1, 10))

    def test_a_new_run_begins_in_generation_1_from_the_initial_state(self, desk: Desk) -> None:
        directive = desk.decider.start()
        assert (directive.generation, directive.restore, directive.tier) == (1, None, None)
        assert directive.precision == desk.config.train.precision
        assert desk.journal == ["generation.created"]
        assert desk.generations == [1]

    def test_a_run_that_goes_on_loads_the_newest_checkpoint_and_expects_the_losses_after_it(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        desk.succeed()
        directive = desk.decider.start()
        assert (directive.generation, directive.restore) == (2, CheckpointRef(1, 10))
        assert [step for step, _ in directive.expected_losses] == [10, 11, 12, 13, 14]
        assert directive.exact

    def test_with_another_configuration_only_the_first_loss_must_come_again_and_only_nearly(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        desk.succeed(changed=True)
        directive = desk.decider.start()
        assert [step for step, _ in directive.expected_losses] == [10]
        assert not directive.exact
        assert desk.ledger.losses_between(0, 40) == ()

    def test_a_run_that_is_not_deterministic_promises_no_bits(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, small_config(train={"steps": 40, "deterministic": False}))
        assert not desk.decider.start().exact

    def test_the_stop_step_travels_with_every_directive(self, desk: Desk) -> None:
        desk.decider = desk.hire(stop_step=15)
        assert desk.decider.start().stop_step == 15
        desk.run_to(8)
        assert desk.decide(lost_process(8)).stop_step == 15

    def test_a_number_that_a_dead_supervisor_claimed_without_journalling_is_passed_over(self, desk: Desk) -> None:
        create_generation(desk.store, Generation(1, None, 0, "claimed, then died", "dead", 1.0))
        assert desk.decider.start().generation == 2
        assert [made.number for made in list_generations(desk.store)] == [1, 2]

    def test_a_number_that_another_supervisor_claims_meanwhile_fences_this_one(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(8)
        create_generation(desk.store, Generation(2, 1, 0, "somebody else", "rival", 1.0))
        with pytest.raises(FencedError):
            desk.decide(lost_process(8))


class TestDeciding:
    def test_the_journal_has_the_decision_and_then_the_generation_before_anybody_hears_of_it(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        seen: list[list[str]] = []
        desk.decider._on_generation = lambda _number: seen.append(desk.journal[-2:])
        directive = desk.decide(lost_process(18))
        assert seen == [DECISIONS]
        assert (directive.generation, directive.tier, directive.restore) == (2, Tier.RESUME, CheckpointRef(1, 10))

    def test_the_generation_forks_where_the_checkpoint_lies(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        desk.decide(lost_process(18))
        made = list_generations(desk.store)[-1]
        assert (made.number, made.parent, made.fork_step) == (2, 1, 10)

    def test_a_resume_expects_bits_only_for_steps_before_the_onset(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        directive = desk.decide(numeric_fault(17, onset=12))
        assert [step for step, _ in directive.expected_losses] == [10, 11]
        assert directive.exact

    def test_behind_a_step_without_a_recorded_loss_nothing_is_expected(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        del desk.ledger._losses[12]
        assert [step for step, _ in desk.decide(lost_process(18)).expected_losses] == [10, 11]

    def test_a_rollback_cuts_the_learning_rate_and_so_expects_only_the_first_loss(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(36, checkpoints=(10, 20, 30))
        desk.decide(numeric_fault(35))
        desk.run_to(35)
        directive = desk.decide(numeric_fault(35))
        assert directive.tier is Tier.ROLLBACK
        assert [event.factor for event in directive.lr_events] == [0.8]
        assert len(directive.expected_losses) == 1
        assert not directive.exact

    def test_losses_beyond_the_fork_are_not_expected_again(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        desk.decide(lost_process(18))
        assert desk.ledger.losses_between(0, 40)[-1][0] == 9

    def test_tier_3_says_until_which_step_it_computes_in_fp32(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(36, checkpoints=(10, 20, 30))
        for _ in range(2):
            desk.decide(numeric_fault(35))
            desk.run_to(35)
        directive = desk.decide(numeric_fault(35))
        assert (directive.tier, directive.precision, directive.fp32_until) == (Tier.FP32_REPLAY, "fp32", 46)

    def test_a_damaged_checkpoint_is_replaced_by_the_one_before_at_the_same_tier(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(28, checkpoints=(10, 20))
        first = desk.decide(lost_process(28))
        desk.ledger.note("checkpoint.corrupt", step=20, generation=1, problem="torn")
        again = desk.decider.decide_again()
        assert (first.restore, again.restore) == (CheckpointRef(1, 20), CheckpointRef(1, 10))
        assert (first.tier, again.tier) == (Tier.RESUME, Tier.RESUME)
        assert (first.generation, again.generation) == (2, 3)
        assert desk.ledger.record.ladder.episodes == 1

    def test_at_the_start_too_a_damaged_checkpoint_is_replaced(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(28, checkpoints=(10, 20))
        desk.succeed()
        desk.decider.start()
        desk.ledger.note("checkpoint.corrupt", step=20, generation=1, problem="torn")
        assert desk.decider.decide_again().restore == CheckpointRef(1, 10)

    def test_recovery_is_measured_against_the_highest_step_reached(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(18, checkpoints=(10,))
        desk.decide(lost_process(18))
        assert (desk.decider.caught_up_at, desk.decider.first_step_of) == (17, 2)


class TestEnding:
    def test_a_ladder_that_is_used_up_ends_the_run_with_exit_code_4(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(8)
        while not (directive := desk.decide(numeric_fault(8))).stop_reason:
            desk.run_to(8)
        assert directive.tier is Tier.EXHAUSTED
        assert desk.ledger.phase is RunPhase.EXHAUSTED
        assert (desk.ledger.record.outcome, desk.ledger.record.exit_code) == ("exhausted", 4)
        assert desk.journal[-2:] == ["ladder.decided", "run.exhausted"]

    @pytest.mark.parametrize("code", [2, 6])
    def test_an_error_that_must_come_again_ends_the_run_with_the_code_of_whose_it_is(
        self, desk: Desk, code: int
    ) -> None:
        desk.decider.start()
        desk.ledger.move(RunEvent.RESOURCES_READY)
        described = Described(FaultKind.USER_CODE, 0, -1, "ValueError: typo", "Traceback", code, 1.0)
        directive = desk.decide(described.for_ladder(), described)
        assert directive.stop_reason
        assert (desk.ledger.record.outcome, desk.ledger.record.exit_code) == ("failed", code)
        ending = data_of(Journal.read(desk.store), "run.failed")
        assert (ending["error"], ending["details"]) == ("ValueError: typo", "Traceback")
        assert desk.ledger.phase is RunPhase.FAILED

    @pytest.mark.parametrize("fault", [lost_process(8), numeric_fault(8)])
    def test_a_fault_while_a_person_waits_for_the_end_starts_no_repair(self, desk: Desk, fault: Fault) -> None:
        desk.decider.start()
        desk.run_to(8)
        desk.ledger.stop_reason = "enough"
        desk.ledger.move(RunEvent.STOP_ASKED)
        before = desk.journal
        assert desk.decider.decide(fault).stop_reason == "enough"
        assert desk.journal == before


class TestWithoutAStore:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deciding, "_RETRY_S", 0.01)

    def test_no_generation_begins_while_the_store_is_away_beyond_the_deadline(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(8)
        desk.store.go_down()
        with pytest.raises(StorageError) as caught:
            desk.decide(lost_process(8))
        assert caught.value.exit_code == 75
        assert desk.ledger.record.generation == 1
        assert desk.generations == [1]

    def test_a_store_that_comes_back_in_time_is_waited_for(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, small_config(journal={"deadline_s": LIMIT_S}))
        desk.decider.start()
        desk.run_to(8)
        desk.store.failures = 3
        assert desk.decide(lost_process(8)).generation == 2
        desk.ledger.flush(LIMIT_S)
        assert desk.journal[-2:] == DECISIONS

    def test_an_answer_that_was_lost_does_not_fence_the_one_who_asked(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, small_config(journal={"deadline_s": LIMIT_S}))
        desk.store.lost_answers = 1
        assert desk.decider.start().generation == 1


class TestWhereAllIsDamaged:
    def test_a_run_never_begins_anew_by_itself(self, desk: Desk) -> None:
        desk.decider.start()
        desk.run_to(30, checkpoints=(10, 20))
        for step in (10, 20):
            desk.ledger.note("checkpoint.corrupt", step=step, generation=1, problem="bytes")
        directive = desk.decide(lost_process(30))
        assert "all checkpoints are damaged: 1/10, 1/20" in directive.stop_reason
        assert (desk.ledger.record.outcome, desk.ledger.record.exit_code) == ("failed", 3)
        assert desk.generations == [1]


class TestShadowMode:
    @pytest.fixture
    def shadow(self, tmp_path: Path) -> Desk:
        made = Desk(tmp_path, small_config(ladder={"probation_steps": 3, "shadow": True}))
        made.decider.start()
        made.run_to(25, checkpoints=(10, 20))
        return made

    def test_asking_what_would_be_done_changes_nothing(self, shadow: Desk) -> None:
        before, record = shadow.journal, shadow.ledger.record
        decision = shadow.decider.would_decide(numeric_fault(24))
        assert (decision.tier, decision.restore) == (Tier.RESUME, CheckpointRef(1, 20))
        assert (shadow.journal, shadow.ledger.record) == (before, record)

    def test_a_lost_process_is_resumed_because_the_run_would_end(self, shadow: Desk) -> None:
        directive = shadow.decide(lost_process(24))
        assert (directive.tier, directive.restore) == (Tier.RESUME, CheckpointRef(1, 20))

    def test_without_progress_a_person_decides(self, shadow: Desk) -> None:
        shadow.decide(lost_process(24))
        shadow.ledger.move(RunEvent.RESOURCES_READY)
        assert "it would have been: tier 2" in shadow.decide(lost_process(24)).stop_reason
        assert shadow.ledger.record.outcome == "exhausted"
