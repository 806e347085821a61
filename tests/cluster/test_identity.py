"""A run that was killed five times, and one that was stopped three times, hold the bits of one that nothing disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.machine import Config, Machine, brake, data, ending, final_rows, kinds, of_kind, paced

from stormsail.platform.home import Home
from stormsail.platform.vault.folder import home_folder
from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

# So far apart, at this pace, that between any two the supervisor hears of new steps: none is a relapse of another.
PACE_S = 0.05
KILLS = [
    {"kind": "kill", "step": 4, "rank": 0},  # before the first checkpoint
    {"kind": "kill", "step": 20, "rank": 1, "during": "save"},
    {"kind": "kill", "step": 36, "rank": 1},
    {"kind": "kill", "step": 50, "rank": 0, "during": "save"},
    {"kind": "kill", "step": 66, "rank": 0},
]


@pytest.fixture(scope="module")
def killed(machine: Machine, base: Config) -> ReadRun:
    config = machine.write(
        "killed",
        data=paced(base, pace_s=PACE_S),
        drill={"faults": KILLS},
        eval={"every_steps": 20, "samples": 6},
        checkpoint={**base["checkpoint"], "keep_best": True},
    )
    machine.run("train", config, timeout_s=1200.0)
    return machine.read("killed")


@pytest.fixture(scope="module")
def resumed(machine: Machine, base: Config, tmp_path_factory: pytest.TempPathFactory) -> ReadRun:
    """Stopped three times and continued by the same command each time."""
    pedal = tmp_path_factory.mktemp("resumed") / "brake"
    config = machine.write("resumed", data=paced(base, pace_s=0.03, brake=pedal, crawl_s=1.5, free=8))
    with brake(pedal):
        for attempt in (1, 2, 3):
            stop_midway(machine, config, attempt)
    machine.run("train", config)
    return machine.read("resumed")


def stop_midway(machine: Machine, config: Path, attempt: int) -> None:
    """Train, stop once new steps are done, and hear of it from both commands."""
    with machine.started("train", config) as training:
        machine.await_events(
            config.stem, lambda events: len(of_kind(events, "world.formed")) == attempt, within_s=400.0
        )
        machine.run("stop", config.stem)
        ended = ending(training, within_s=400.0)
    assert ended.code == 5, ended
    assert "stopped at step" in ended.err


@pytest.mark.parametrize("name", ["killed", "resumed"])
class TestSameAsStraight:
    @pytest.fixture
    def run(self, name: str, request: pytest.FixtureRequest) -> ReadRun:
        found: ReadRun = request.getfixturevalue(name)
        return found

    def test_the_weights_and_moments_have_the_same_digest(self, run: ReadRun, straight: ReadRun) -> None:
        digests = [data(of_kind(read.events, "run.finished")[-1])["digest"] for read in (run, straight)]
        assert digests[0] is not None
        assert digests[0] == digests[1]

    def test_every_step_has_the_same_loss_learning_rate_and_batch(self, run: ReadRun, straight: ReadRun) -> None:
        kept = ("step", "loss", "grad_norm", "lr", "tokens", "batch")
        mine, theirs = (
            [{key: row[key] for key in kept} for _, row in sorted(final_rows(read).items())] for read in (run, straight)
        )
        assert len(mine) == 70
        assert mine == theirs

    def test_as_many_updates_were_applied(self, run: ReadRun, straight: ReadRun) -> None:
        assert final_rows(run)[69]["applied"] == final_rows(straight)[69]["applied"] == 70

    def test_checkpoints_that_both_made_are_the_same(self, run: ReadRun, straight: ReadRun) -> None:
        digests = {event.step: data(event)["digest"] for event in of_kind(straight.events, "checkpoint.committed")}
        made = {event.step: data(event)["digest"] for event in of_kind(run.events, "checkpoint.committed")}
        assert made.keys() >= {10, 20, 30, 40, 50, 60, 70}
        assert {step: made[step] for step in digests} == digests


def test_all_five_kills_happened_and_each_was_healed_by_a_plain_resume(killed: ReadRun) -> None:
    fired = [(event.step, data(event)["rank"]) for event in of_kind(killed.events, "drill.fired")]
    assert fired == [(kill["step"], kill["rank"]) for kill in KILLS]
    assert [data(event)["tier"] for event in of_kind(killed.events, "ladder.decided")] == ["resume"] * 5
    assert [data(event)["attempt"] for event in of_kind(killed.events, "attempt.started")] == [1, 2, 3, 4, 5, 6]


def test_a_kill_before_the_first_checkpoint_starts_from_the_seed_again(killed: ReadRun) -> None:
    assert data(of_kind(killed.events, "ladder.decided")[0])["restore"] is None


def test_a_save_that_was_killed_is_never_resumed_from_and_does_not_mix_with_the_next(killed: ReadRun) -> None:
    commits = {(event.step, data(event)["generation"]) for event in of_kind(killed.events, "checkpoint.committed")}
    for kill, generation in ((20, 2), (50, 4)):
        assert (kill, generation) not in commits
        assert (kill, generation + 1) in commits
    restored = {
        (data(event)["ref_step"], data(event)["ref_generation"]) for event in of_kind(killed.events, "state.restored")
    }
    assert restored - {(0, None)} <= commits


def test_a_save_that_was_killed_is_listed_as_incomplete(machine: Machine, killed: ReadRun) -> None:
    shelf = machine.run("checkpoints", "ls", "killed", "--json").json["checkpoints"]
    states = {(row["step"], row["generation"]): row["state"] for row in shelf}
    assert states[20, 2] == states[50, 4] == "incomplete"
    assert states[70, 6] == "live"
    table = machine.run("checkpoints", "ls", "killed").out
    assert "incomplete" in table


def test_what_is_kept_after_five_kills_verifies(machine: Machine, killed: ReadRun) -> None:
    found = machine.run("checkpoints", "verify", "killed", "--json").json
    assert found["checkpoints"] >= 3
    assert found["problems"] == []


def test_retention_keeps_the_newest_by_step(machine: Machine, killed: ReadRun) -> None:
    """Case 3, on a run with several generations: order comes from the step."""
    shelf = machine.run("checkpoints", "ls", "killed", "--json").json["checkpoints"]
    assert {50, 60, 70} <= {row["step"] for row in shelf if row["state"] == "live"}


def test_after_a_kill_every_rank_reads_the_state_from_its_node_s_vault(killed: ReadRun) -> None:
    restored = [data(event) for event in of_kind(killed.events, "state.restored") if data(event)["ref_step"]]
    assert len(restored) == 4
    assert [list(found["places"]) for found in restored] == [["vault"]] * 4
    assert "place.damaged" not in kinds(killed.events)
    assert "vault.unused" not in kinds(killed.events)
    assert len(of_kind(killed.events, "vault.opened")) == 1


def test_nothing_of_a_finished_run_is_left_in_shared_memory(machine: Machine, killed: ReadRun) -> None:
    assert killed.record.outcome == "finished"
    folder = home_folder(Home(machine.home))
    assert not list(folder.glob("*")) or not folder.exists()


def test_the_report_tells_of_five_incidents_cured_by_tier_one(machine: Machine, killed: ReadRun) -> None:
    report = machine.run("report", "killed", "--json").json
    assert [incident["tier"] for incident in report["incidents"]] == [1] * 5
    assert all(incident["mttr_s"] > 0 for incident in report["incidents"])
    assert 0 < report["ettr"] < 1
    assert report["lost_steps"] > 0
    assert report["final_digest"] == data(of_kind(killed.events, "run.finished")[-1])["digest"]


def test_it_was_evaluated_all_the_same_and_its_best_checkpoint_is_kept(machine: Machine, killed: ReadRun) -> None:
    """Which cost no bit, as the digests show: the undisturbed run was not evaluated."""
    said = {
        (data(event)["generation"], event.step): data(event) for event in of_kind(killed.events, "evaluation.finished")
    }
    shelf = {
        (row["generation"], row["step"]): row
        for row in machine.run("checkpoints", "ls", "killed", "--json").json["checkpoints"]
        if row["state"] == "live" and row["eval_loss"] is not None
    }
    assert {step for _, step in said} >= {20, 40, 60, 70}
    assert {ref: row["eval_loss"] for ref, row in shelf.items()} == {ref: said[ref]["loss"] for ref in shelf}
    assert len({fields["loss"] for (_, step), fields in said.items() if step == 20}) == 1  # killed, and done again
    newest = max(step for (_, step), row in shelf.items() if row["good"])
    able = {ref: row["eval_loss"] for ref, row in shelf.items() if row["good"] or ref[1] > newest}
    assert [ref for ref, row in shelf.items() if row["best"]] == [min(able, key=lambda ref: able[ref])]
    report = machine.run("report", "killed", "--json").json
    assert report["evaluation"]["last_step"] == 70
    assert report["evaluate_s"] > 0


def test_each_resume_says_what_it_resumed_from(machine: Machine, resumed: ReadRun) -> None:
    assert kinds(resumed.events).count("run.stopped") == 3
    restored = of_kind(resumed.events, "state.restored")
    assert len(restored) == 3
    told = machine.run("events", "resumed").out
    for event in restored:
        assert event.step is not None
        assert event.step > 0
        assert f"restored checkpoint {data(event)['ref_generation']}/{event.step}: step {event.step}" in told
        assert f"{event.step * 4 * 32:,} tokens seen" in told


def test_a_stop_loses_nothing(resumed: ReadRun) -> None:
    """It saves what is there, so that no step is computed twice."""
    steps = [int(row["step"]) for row in resumed.rows]
    assert steps == list(range(70))


def test_planned_stops_cost_no_tier(resumed: ReadRun) -> None:
    assert "ladder.decided" not in kinds(resumed.events)
    assert "fault.detected" not in kinds(resumed.events)
