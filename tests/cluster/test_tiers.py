"""Tiers 2 and 3 do what they say, inside the living workers, and what they decided outlives a later crash."""

from __future__ import annotations

import itertools
import time

import pytest
from tests.support.machine import Machine, data, final_rows, kinds, of_kind

from stormsail.platform.journal_events import Event
from stormsail.supervisor.monitors.item import State
from stormsail.supervisor.monitors.reading import view_of
from stormsail.supervisor.monitors.showing import readings_of
from stormsail.supervisor.reading import ReadRun, Row
from stormsail.workers.schedule import scheduled_lr

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STEPS = 220
CRASH, OVERFLOW, DROPS = 110, 150, 205
FAULTS = [
    {"kind": "lr_instability", "step": 50, "steps": 14, "scale": 60.0},
    {"kind": "kill", "step": CRASH, "rank": 1},
    {"kind": "bf16_overflow", "step": OVERFLOW, "steps": 4, "rank": 1},
    {"kind": "nonfinite", "step": DROPS, "steps": 2, "rank": 0},  # fewer than nonfinite.patience: no incident
]


@pytest.fixture(scope="module")
def healed(machine: Machine) -> ReadRun:
    config = machine.write(
        "healed",
        train={"steps": STEPS},
        data={"args": {"holdout": 0.01}},
        eval={"every_steps": 100, "samples": 4},
        checkpoint={"keep_every_steps": 50, "max_deltas": 2},
        detect={"spike": {"grace_steps": 4}},
        rollback={"min_steps": 10},
        ladder={"probation_steps": 15},
        drill={"faults": FAULTS},
    )
    machine.run("train", config, timeout_s=800.0)
    return machine.read("healed")


@pytest.fixture(scope="module")
def decisions(healed: ReadRun) -> list[Event]:
    return of_kind(healed.events, "ladder.decided")


def planned(step: int) -> float:
    """The schedule's rate, without any factor."""
    return scheduled_lr(step, peak=3e-3, warmup_steps=5, total_steps=STEPS, min_ratio=0.1)


def first_of(decisions: list[Event], tier: str) -> Event:
    return next(event for event in decisions if data(event)["tier"] == tier)


def rows_after(run: ReadRun, decision: Event) -> list[Row]:
    """The rows of the generation that a decision began."""
    begun = next(event for event in of_kind(run.events, "generation.created") if event.number > decision.number)
    return [row for row in run.rows if row["generation"] == begun.generation]


def assert_rate(rows: list[Row], factor: float) -> None:
    """Every update of these rows used the plan's rate times the factor."""
    applied = [row for row in rows if row["outcome"] == "applied"]
    assert len(applied) > 15
    assert [row["lr_factor"] for row in rows] == pytest.approx([factor] * len(rows))
    assert [row["lr"] for row in applied] == pytest.approx([factor * planned(row["step"]) for row in applied])


def test_the_ladder_is_climbed_in_order(decisions: list[Event]) -> None:
    numeric = [data(event)["tier"] for event in decisions if data(event)["kind"] != "process"]
    assert numeric == ["resume", "rollback", "resume", "rollback", "fp32_replay"]


def test_living_workers_take_what_they_still_have_in_memory(healed: ReadRun) -> None:
    restored = of_kind(healed.events, "state.restored")
    living = [set(data(event)["places"]) for event in restored if event.attempt == 1]
    assert {"memory"} in living
    assert all(places in ({"memory"}, {"store"}) for places in living)
    first_after_the_crash = next(event for event in restored if event.attempt == 2)
    assert set(data(first_after_the_crash)["places"]) == {"vault"}


def test_only_the_crash_started_processes_again(healed: ReadRun) -> None:
    formed = of_kind(healed.events, "world.formed")
    assert [event.attempt for event in formed] == [1, 2]
    pids = [{worker["pid"] for worker in data(event)["workers"]} for event in formed]
    assert not pids[0] & pids[1]


def test_tier_two_goes_back_to_a_good_state_well_before_the_onset(healed: ReadRun, decisions: list[Event]) -> None:
    decision = first_of(decisions, "rollback")
    before = healed.events[: healed.events.index(decision)]
    restore = data(decision)["restore"]
    onset = data(of_kind(before, "fault.detected")[-1])["onset"]
    assert restore["step"] <= onset - 10
    assert (restore["step"], restore["generation"]) in {
        (event.step, data(event)["generation"]) for event in of_kind(before, "checkpoint.good")
    }


def test_tier_two_really_trains_with_eight_tenths_of_the_plan(healed: ReadRun, decisions: list[Event]) -> None:
    rows = rows_after(healed, first_of(decisions, "rollback"))
    assert_rate(rows, 0.8)


def test_the_cut_survives_a_later_plain_resume(healed: ReadRun, decisions: list[Event]) -> None:
    crash = next(event for event in decisions if data(event)["kind"] == "process")
    assert data(crash)["tier"] == "resume"
    rows = rows_after(healed, crash)
    assert rows[0]["step"] <= CRASH < rows[-1]["step"]
    assert_rate(rows, 0.8)


def test_a_second_rollback_gives_sixty_four_hundredths(healed: ReadRun, decisions: list[Event]) -> None:
    second = [event for event in decisions if data(event)["tier"] == "rollback"][1]
    assert_rate(rows_after(healed, second), 0.64)


def test_the_window_of_tier_three_computes_in_fp32_and_nothing_else_does(
    healed: ReadRun, decisions: list[Event]
) -> None:
    decision = first_of(decisions, "fp32_replay")
    restored = next(event for event in of_kind(healed.events, "state.restored") if event.number > decision.number)
    assert data(restored)["compute_dtype"] == "float32"
    assert data(of_kind(healed.events, "replay.finished")[-1])["window_dtype"] == "float32"
    until = data(decision)["fp32_until"]
    assert until > OVERFLOW + 3
    replayed = rows_after(healed, decision)
    assert [row["precision"] for row in replayed] == ["fp32" if row["step"] < until else "bf16" for row in replayed]
    assert {row["precision"] for row in healed.rows if row["generation"] < replayed[0]["generation"]} == {"bf16"}


def test_the_replay_starts_a_window_before_the_onset_or_at_the_oldest_good_state(decisions: list[Event]) -> None:
    restore = data(first_of(decisions, "fp32_replay"))["restore"]
    assert restore is None or restore["step"] <= OVERFLOW - 100


def test_the_replay_reads_byte_for_byte_the_same_data(healed: ReadRun, decisions: list[Event]) -> None:
    replayed = rows_after(healed, first_of(decisions, "fp32_replay"))
    generation = replayed[0]["generation"]
    seen: dict[int, int] = {}
    for row in healed.rows:
        if row["generation"] < generation:
            assert seen.setdefault(row["step"], row["batch"]) == row["batch"]
    again = [row for row in replayed if row["step"] in seen]
    assert len(again) > 50
    assert all(row["batch"] == seen[row["step"]] for row in again)


def test_it_returns_to_the_runs_precision_and_finishes(healed: ReadRun) -> None:
    assert healed.record.outcome == "finished"
    assert final_rows(healed)[STEPS - 1]["precision"] == "bf16"


def test_every_step_of_the_final_line_is_there_once_and_in_order(healed: ReadRun) -> None:
    assert sorted(final_rows(healed)) == list(range(STEPS))
    for one, two in itertools.pairwise(row for _, row in sorted(final_rows(healed).items())):
        assert two["generation"] >= one["generation"]


def test_a_dropped_update_counts_a_step_but_no_update(healed: ReadRun) -> None:
    """Case 23: nobody is left to think that a skipped update was applied."""
    rows = final_rows(healed)
    assert [rows[step]["outcome"] for step in (DROPS - 1, DROPS, DROPS + 1, DROPS + 2)] == [
        "applied",
        "dropped",
        "dropped",
        "applied",
    ]
    assert rows[DROPS + 1]["applied"] == rows[DROPS - 1]["applied"]


def test_the_status_tells_steps_from_updates(machine: Machine, healed: ReadRun) -> None:
    status = machine.run("status", "healed", "--json").json
    assert status["step"] == STEPS
    assert status["skipped"] == STEPS - status["applied"] == 2


def test_each_dropped_update_is_an_event_with_rank_and_parameter(machine: Machine, healed: ReadRun) -> None:
    drops = [event for event in of_kind(healed.events, "update.dropped") if event.step in (DROPS, DROPS + 1)]
    assert [data(event)["rank"] for event in drops] == [0, 0]
    assert all(data(event)["first_parameter"] for event in drops)
    assert f"update of step {DROPS} dropped" in machine.run("events", "healed").out


def test_nothing_is_known_good_while_a_numeric_episode_is_open(healed: ReadRun) -> None:
    open_since: Event | None = None
    for event in healed.events:
        if event.kind == "ladder.decided" and data(event)["kind"] != "process":
            open_since = open_since or event
        elif event.kind == "episode.closed":
            open_since = None
        elif event.kind == "checkpoint.good":
            assert open_since is None, f"{event} while the episode of {open_since} is open"


def test_what_is_kept_for_long_was_folded_by_a_ray_task(machine: Machine, healed: ReadRun) -> None:
    assert "checkpoint.fold_failed" not in kinds(healed.events)
    folded = {(data(event)["generation"], event.step) for event in of_kind(healed.events, "checkpoint.folded")}
    shelf = machine.run("checkpoints", "ls", "healed", "--json").json["checkpoints"]
    assert folded
    assert folded <= {(row["generation"], row["step"]) for row in shelf if row["folded"]}
    assert machine.run("checkpoints", "verify", "healed", "--json").json["problems"] == []


def test_the_report_names_the_tier_that_cured_each(machine: Machine, healed: ReadRun) -> None:
    report = machine.run("report", "healed", "--json").json
    assert [incident["tier"] for incident in report["incidents"]] == [2, 1, 3]
    assert report["drill"]["fired"] == report["drill"]["recovered"] == len(FAULTS)
    assert "run.finished" in kinds(healed.events)


# What only a run with such a fault, or under such a load, tells.
UNTOLD: set[str] = set()


def test_every_monitored_item_is_fed_by_a_run(healed: ReadRun) -> None:
    readings = readings_of(view_of(healed, now_s=time.time()), "default")
    assert {reading.item.name for reading, _ in readings if reading.state is State.ABSENT} == UNTOLD
    levels = {reading.item.name: reading.state for reading, _ in readings}
    assert levels["recovery.numeric"] is State.DANGER  # five decisions about bad numbers
    assert levels["recovery.lost_workers"] is State.WARN
    assert levels["state.damaged"] is State.NORMAL
