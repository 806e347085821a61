"""What only several ranks can show: one decision for all, whoever sees the trouble (gloo, no Ray)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.support.rank_processes import Job, Told, run_world
from tests.support.run_kit import Staff, beat, join_request, small_config

from stormsail.platform.journal import Journal
from stormsail.platform.messages import FaultKind
from stormsail.platform.storage.memory import MemoryStore
from stormsail.supervisor.telling import tell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLOW_STEPS = 34
STALLED = 8
ONE_BLANK, ALL_BLANK, LOUD, LAST = 14, 16, 34, 36

# By world, the steps with a bad number, where it is put, and the rank that has it.
BAD = {
    "two": {2: ("shard", 0), 4: ("shard", 1), 6: ("gradient", 0), 8: ("gradient", 1), 10: ("loss", 0), 12: ("loss", 1)},
    "four": {
        1 + 2 * index: (where, rank)
        for index, (where, rank) in enumerate(
            (where, rank) for where in ("shard", "gradient", "loss") for rank in range(4)
        )
    },
}


def nonfinite(world: str) -> list[dict[str, object]]:
    return [
        {"kind": "nonfinite", "rank": rank, "step": step, "where": where} for step, (where, rank) in BAD[world].items()
    ]


@pytest.fixture(scope="module")
def two(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Two ranks: bad numbers on each, batches without a real token, a loud rank, and then rank 1 alone goes astray."""
    job = Job(
        LAST + 1,
        {
            "drill": {"faults": nonfinite("two")},
            "train": {"steps": LAST + 1, "global_batch": 4, "micro_batch": 2},
            "detect": {"sample_every": 3, "budget": 1.0, "on_watch": "skip"},
        },
        astray=(1, LAST),
        blank=((1, ONE_BLANK), (-1, ALL_BLANK)),
        loud=(1, LOUD, 40.0),
        evaluated=3,
    )
    return run_world(job, 2, home=tmp_path_factory.mktemp("two"), extensions=built_extensions)


@pytest.fixture(scope="module")
def four(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Four ranks: bad numbers on each in turn, rank 2 slow throughout, rank 1 stalling once, rank 3 astray."""
    job = Job(
        SLOW_STEPS + 1,
        {
            "drill": {"faults": nonfinite("four")},
            "nonfinite": {"share": 1.0},  # so many drops would be an incident, and end the steps
            "train": {"steps": SLOW_STEPS + 1, "global_batch": 8, "micro_batch": 2},
            "detect": {"ranks": {"slow_share": 0.4}},  # a busy machine makes others slow now and then
        },
        astray=(3, SLOW_STEPS),
        slow=(2, 0.25),
        stall=(1, STALLED, 6.0),
    )
    return run_world(job, 4, home=tmp_path_factory.mktemp("four"), extensions=built_extensions)


@pytest.mark.parametrize("world", ["two", "four"])
class TestNonFinite:
    def test_it_is_seen_in_that_step_whichever_rank_has_it(self, world: str, request: pytest.FixtureRequest) -> None:
        told: list[Told] = request.getfixturevalue(world)
        dropped = {row.step for row in told[0].rows if row.outcome == "dropped"}
        assert dropped == set(BAD[world])

    def test_the_rank_is_named_even_after_its_nan_went_into_the_sum_of_all(
        self, world: str, request: pytest.FixtureRequest
    ) -> None:
        told: list[Told] = request.getfixturevalue(world)
        named = {fields["step"]: fields["rank"] for kind, fields in told[0].lines if kind == "update.dropped"}
        assert named == {step: rank for step, (_, rank) in BAD[world].items()}

    def test_it_is_never_applied_on_any_rank(self, world: str, request: pytest.FixtureRequest) -> None:
        told: list[Told] = request.getfixturevalue(world)
        outcomes = [row.outcome for row in told[0].rows]
        for rank in told:
            assert [moved for moved, _ in zip(rank.moved, outcomes, strict=False)] == [
                outcome == "applied" for outcome in outcomes
            ]
            assert all(rank.finite)
            assert rank.applied == told[0].applied

    def test_all_ranks_hold_the_same_weights_after_every_step(self, world: str, request: pytest.FixtureRequest) -> None:
        told: list[Told] = request.getfixturevalue(world)
        assert all(rank.weights == told[0].weights for rank in told)
        assert len(set(told[0].weights)) > 1


def test_ranks_evaluate_together_and_their_state_stays_as_it_was(two: list[Told]) -> None:
    losses = {rank.evaluations[0] for rank in two}
    assert len(losses) == 1
    assert number(losses.pop()) == pytest.approx(two[0].rows[3].loss, rel=0.2)
    assert all(rank.undisturbed for rank in two)
    assert two[0].weights[3] == two[1].weights[3]


def test_ranks_that_hold_out_different_samples_all_refuse_alike(two: list[Told]) -> None:
    assert {str(rank.evaluations[1])[:35] for rank in two} == {"ranks hold out different samples, s"}


def test_a_rank_without_a_real_token_does_not_spoil_the_mean_of_the_others(two: list[Told]) -> None:
    row = two[0].rows[ONE_BLANK]
    assert row.outcome == "applied"
    assert (row.tokens, two[0].rows[ONE_BLANK - 1].tokens) == (16, 32)
    before, after = two[0].rows[ONE_BLANK - 1], two[0].rows[ONE_BLANK + 1]
    assert math.isfinite(row.grad_norm)
    # The mean over the tokens that there were: not half of it.
    assert row.loss > 0.8 * min(before.loss, after.loss)


def test_a_whole_batch_without_one_is_an_empty_step_that_is_told_and_moves_nothing(two: list[Told]) -> None:
    row = two[0].rows[ALL_BLANK]
    assert (row.outcome, row.tokens) == ("empty", 0)
    assert [rank.moved[ALL_BLANK] for rank in two] == [False, False]
    assert [fields["step"] for kind, fields in two[0].lines if kind == "step.empty"] == [ALL_BLANK]
    assert two[0].rows[ALL_BLANK + 1].outcome == "applied"
    assert {incident.kind for incident in two[0].incidents} == {FaultKind.DESYNC}  # of the rank astray, nothing else


def test_a_spike_of_one_rank_is_one_decision_for_all(two: list[Told]) -> None:
    assert [row.step for row in two[0].rows if row.outcome == "skipped"] == [LOUD]
    assert [rank.moved[LOUD] for rank in two] == [False, False]
    assert [rank.moved[LOUD + 1] for rank in two] == [True, True]
    assert len({(rank.applied[LOUD + 1], rank.weights[LOUD + 1]) for rank in two}) == 1


@pytest.mark.parametrize("world", ["two", "four"])
def test_a_rank_that_goes_astray_stops_the_update_on_all(world: str, request: pytest.FixtureRequest) -> None:
    told: list[Told] = request.getfixturevalue(world)
    incidents = [incident for rank in told for incident in rank.incidents]
    assert [incident.kind for incident in incidents] == [FaultKind.DESYNC]
    assert incidents[0].evidence["ranks"] == ([0, 1] if world == "two" else [3])
    assert incidents[0].evidence["fields"] == "rates"
    assert [rank.moved[-1] for rank in told] == [False] * len(told)


def test_rows_carry_samples_at_the_steps_that_were_agreed_on(two: list[Told]) -> None:
    sampled = [row.step for row in two[0].rows if "accuracy.tokens" in row.values]
    assert sampled == list(range(0, LAST, 3))
    row = two[0].rows[3]
    assert set(row.ranks) == {"loss", "shard_norm", "data_s", "compute_s", "comm_s", "wait_s"}
    assert all(len(values) == 2 for values in row.ranks.values())
    assert row.values["update.rms"] > 0.0


def number(found: object) -> float:
    assert isinstance(found, float)
    return found


def test_the_slow_rank_is_named_and_a_single_stall_is_only_noted(four: list[Told], tmp_path: Path) -> None:
    staff = Staff(MemoryStore(), tmp_path, small_config(cluster={"workers": 4}))
    staff.begin()
    for rank in range(4):
        staff.hearing.join(join_request(rank))
    lines = tuple((number, kind, fields) for number, (kind, fields) in enumerate(four[0].lines, start=1))
    staff.hearing.heartbeat(beat(step=SLOW_STEPS, lines=lines))
    staff.close()
    events = Journal.read(staff.store)
    (slow,) = (event for event in events if event.kind == "rank.slow")
    assert (slow.data["rank"], slow.data["host"]) == (2, join_request(2).hostname)
    assert number(slow.data["ratio"]) > 1.3
    stalled = [event for event in events if event.kind == "rank.stalled"]
    assert (1, STALLED) in [(event.data["rank"], event.step) for event in stalled]
    stall = next(event for event in stalled if event.step == STALLED)
    assert number(stall.data["seconds"]) > 1.0
    assert number(stall.data["ratio"]) > 5.0
    told = tell(slow) or ""
    assert "rank 2" in told
    assert join_request(2).hostname in told
