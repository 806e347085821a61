"""What dies beside the workers: the driver, the supervisor, Ray Train's controller, and a stored object."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from tests.support.machine import (
    Config,
    Machine,
    brake,
    data,
    ending,
    final_rows,
    kinds,
    of_kind,
    paced,
    wait_for,
)

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.folder import home_folder
from stormsail.platform.vault.slots import read_record
from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def orphaned(machine: Machine, base: Config, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run that lost its driver and then its supervisor, and was followed to its end by `attach`."""
    pedal = tmp_path_factory.mktemp("orphaned") / "brake"
    config = machine.write("orphaned", data=paced(base, brake=pedal, crawl_s=1.5, free=24))
    with brake(pedal):
        with machine.started("train", config) as driver:
            machine.await_events("orphaned", lambda events: "checkpoint.committed" in kinds(events), within_s=400.0)
            driver.kill()
            driver.wait(60.0)
        steps_then = len(machine.read("orphaned").rows)
        # Rows reach the store every few seconds: more of them were written after the driver's death.
        wait_for(lambda: len(machine.read("orphaned").rows), lambda rows: rows > steps_then + 1, within_s=200.0)
        with machine.started("attach", "orphaned") as follower:
            owner = str(data(of_kind(machine.read("orphaned").events, "run.started")[0])["owner"])
            flipped = flip_a_bit_of_rank_one(Home(machine.home))
            os.kill(int(owner.rpartition(" ")[2]), signal.SIGKILL)
            machine.await_events("orphaned", lambda events: kinds(events).count("state.restored") == 1, within_s=400.0)
            pedal.unlink()
            ended = ending(follower, within_s=400.0)
    return SimpleNamespace(follower=ended, run=machine.read("orphaned"), flipped=flipped)


def flip_a_bit_of_rank_one(home: Home) -> set[tuple[int, int]]:
    """In every snapshot of rank 1 that lies in its node's vault; gives their generations and steps."""
    flipped = set()
    for path in home_folder(home).glob("*/slots/00001?????"):
        record = read_record(path)
        if record is not None:
            with path.open("r+b") as file:
                file.seek(record.pieces[-1].offset)
                byte = file.read(1)[0]
                file.seek(record.pieces[-1].offset)
                file.write(bytes([byte ^ 4]))
            flipped.add((record.generation, record.step))
    return flipped


def test_a_run_outlives_its_driver_and_its_supervisor(orphaned: SimpleNamespace) -> None:
    assert orphaned.run.record.outcome == "finished"


def test_attach_follows_to_the_end_across_the_death_of_the_supervisor(orphaned: SimpleNamespace) -> None:
    assert orphaned.follower.code == 0, orphaned.follower
    assert "finished at step 70" in orphaned.follower.out
    assert "Traceback" not in orphaned.follower.err


def test_the_new_supervisor_goes_on_from_the_newest_checkpoint_with_the_next_attempt(
    orphaned: SimpleNamespace,
) -> None:
    """Case 17."""
    events = orphaned.run.events
    continued = of_kind(events, "run.continued")[0]
    before = [event for event in events if event.number < continued.number]
    newest = of_kind(before, "checkpoint.committed")[-1]
    restored = of_kind(events, "state.restored")[0]
    assert (restored.step, data(restored)["ref_generation"]) == (newest.step, data(newest)["generation"])
    between = kinds(events)[kinds(events).index("run.continued") : events.index(restored)]
    assert between.count("attempt.started") == 1
    assert "ladder.decided" not in between


def test_a_snapshot_with_a_flipped_bit_is_put_aside_and_the_store_used_in_the_same_pass(
    machine: Machine, orphaned: SimpleNamespace
) -> None:
    events = orphaned.run.events
    restored = of_kind(events, "state.restored")[0]
    assert (data(restored)["ref_generation"], restored.step) in orphaned.flipped
    [damaged] = of_kind(events, "place.damaged")
    assert (data(damaged)["place"], data(damaged)["rank"], damaged.step) == ("vault", 1, restored.step)
    assert set(data(restored)["places"]) == {"vault", "store"}
    assert "checkpoint.corrupt" not in kinds(events)
    told = machine.run("events", "orphaned").out
    assert "was put aside, the next place is tried" in told
    assert "from the node's vault and the store" in told


def test_the_journal_has_no_hole_and_no_entry_twice(orphaned: SimpleNamespace) -> None:
    numbers = [event.number for event in orphaned.run.events]
    assert numbers == list(range(1, len(numbers) + 1))


def test_it_ends_with_the_bits_of_an_undisturbed_run(orphaned: SimpleNamespace, straight: ReadRun) -> None:
    digests = [data(of_kind(run.events, "run.finished")[-1])["digest"] for run in (orphaned.run, straight)]
    assert digests[0] == digests[1]
    losses = [{step: row["loss"] for step, row in final_rows(run).items()} for run in (orphaned.run, straight)]
    assert losses[0] == losses[1]


@pytest.fixture(scope="module")
def extended(machine: Machine, straight: ReadRun) -> SimpleNamespace:
    """The finished run, its newest checkpoint damaged by one flipped bit, and extended."""
    newest = max(straight.record.commits, key=lambda commit: commit.ref.step).ref
    store = straight.place.store()
    pack = load_manifest(store, CheckpointRef(newest.generation, newest.step)).packs[0].key
    body = bytearray(store.get(pack))
    body[len(body) // 2] ^= 1
    store.put(pack, bytes(body))
    verified = machine.run("checkpoints", "verify", "straight", expect=3)
    trained = machine.run("train", machine.write("straight"), "--set", "train.steps=90")
    return SimpleNamespace(pack=pack, verified=verified, trained=trained, run=machine.read("straight"))


def test_a_flipped_bit_in_the_store_is_found_by_verify(extended: SimpleNamespace) -> None:
    assert extended.pack in extended.verified.out
    assert "1 damaged or missing object" in extended.verified.err


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(extended: SimpleNamespace) -> None:
    """Case 6."""
    corrupt = of_kind(extended.run.events, "checkpoint.corrupt")
    assert [event.step for event in corrupt] == [70]
    assert extended.pack in str(data(corrupt[0])["problem"])
    assert of_kind(extended.run.events, "state.restored")[-1].step == 60
    assert extended.pack in extended.trained.out


def test_a_finished_run_is_extended_by_more_steps(extended: SimpleNamespace) -> None:
    assert extended.run.record.outcome == "finished"
    assert sorted(final_rows(extended.run)) == list(range(90))
    continued = of_kind(extended.run.events, "run.continued")[-1]
    assert data(continued)["changes"] == ["train.steps: 70 -> 90"]
    assert "fault.detected" not in kinds(extended.run.events)


@pytest.fixture(scope="module")
def reshaped(machine: Machine, extended: SimpleNamespace) -> ReadRun:
    """The same run goes on with one worker, whose controller dies while it starts, and then with three."""
    config = machine.write("straight")
    one = changes("cluster.workers=1", "cluster.cpus_per_worker=2", "train.steps=100")
    with machine.started("train", config, *one) as command:
        await_start(machine, "straight")
        os.kill(machine.ray_process("ray::TrainController"), signal.SIGKILL)
        ended = ending(command, within_s=400.0)
    assert ended.code == 0, ended
    machine.run("train", config, *changes("cluster.workers=3", "cluster.cpus_per_worker=0.5", "train.steps=110"))
    return machine.read("straight")


def changes(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def await_start(machine: Machine, name: str) -> None:
    """Until the processes of a run's next attempt are there, which have their room, and do not train for some seconds."""
    attempts = kinds(machine.read(name).events).count("attempt.started")
    machine.await_events(name, lambda events: kinds(events).count("attempt.started") > attempts, within_s=200.0)
    wait_for(lambda: machine.ray_processes("ray::RayTrainWorker"), bool, within_s=200.0)


def test_a_run_goes_on_with_another_number_of_workers(reshaped: ReadRun) -> None:
    """Cases 9 to 11, from two workers to one and to three."""
    assert reshaped.record.outcome == "finished"
    assert sorted(final_rows(reshaped)) == list(range(110))
    assert [data(event)["world_size"] for event in of_kind(reshaped.events, "world.formed")][-2:] == [1, 3]
    assert [event.step for event in of_kind(reshaped.events, "state.restored")][-2:] == [90, 100]


def test_workers_whose_controller_died_leave_their_room_to_the_next_attempt(reshaped: ReadRun) -> None:
    """The one that starts needs all CPUs, and the command that began the run is still there."""
    since = of_kind(reshaped.events, "run.continued")[-2].number
    later = [event for event in reshaped.events if event.number > since]
    assert [data(event)["world_size"] for event in of_kind(later, "world.formed")] == [1, 3]
    assert kinds(later).count("attempt.started") == 3
    assert [data(event)["tier"] for event in of_kind(later, "ladder.decided")] == ["resume"]
    assert "resources.waiting" not in kinds(later)


def test_the_journal_says_that_bits_may_differ_from_then_on(reshaped: ReadRun) -> None:
    changes = [data(event)["changes"] for event in of_kind(reshaped.events, "run.continued")][-2:]
    assert "cluster.workers: 2 -> 1 (no longer bit for bit)" in changes[0]
    assert "cluster.workers: 1 -> 3 (no longer bit for bit)" in changes[1]


def test_training_continues_and_its_checkpoints_are_whole(reshaped: ReadRun) -> None:
    losses = {step: float(row["loss"]) for step, row in final_rows(reshaped).items()}
    for step in (90, 100):
        assert abs(losses[step] - losses[step - 1]) < 0.5
    store = reshaped.place.store()
    for step, ranks in ((100, 1), (110, 3)):
        (ref,) = (commit.ref for commit in reshaped.record.commits if commit.ref.step == step)
        assert load_manifest(store, ref).meta.world_size == ranks
        assert verify(store, ref) == []
