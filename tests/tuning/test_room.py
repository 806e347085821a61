"""Room for a batch, as a cluster that is played tells of it; tests/cluster has a real one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ray

from stormsail.platform.config.model import RunConfig
from stormsail.tuning.room import Room, held_per_trial
from stormsail.tuning.settings import SweepConfig

MakeSweep = Callable[..., SweepConfig]


class Cluster:
    """One node with 8 CPUs. Each look finds as many free as `free` gives next; the last number stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = [8.0]
        self.looks = 0
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": False}])
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
        monkeypatch.setattr(ray, "available_resources", self._available)

    def _available(self) -> dict[str, float]:
        self.looks += 1
        return {"CPU": self.free.pop(0) if len(self.free) > 1 else self.free[0]}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_trial_holds_its_own_share_or_its_workers(target: RunConfig, make_sweep: MakeSweep) -> None:
    wide = target.model_copy(update={"cluster": target.cluster.model_copy(update={"cpus_per_worker": 4.0})})
    bare, on_gpu = make_sweep(trials={"cpus": 2.0}), make_sweep(trials={"gpus": 0.5})
    assert held_per_trial(bare, wide, run_takes_gpu=True) == {"CPU": 2.0}
    assert held_per_trial(on_gpu, wide, run_takes_gpu=False) == {"CPU": 1.0, "GPU": 0.5}
    supervised = make_sweep(trials={"kind": "supervised"})
    assert held_per_trial(supervised, wide, run_takes_gpu=False) == {"CPU": 4.0}
    assert held_per_trial(supervised, wide, run_takes_gpu=True) == {"CPU": 4.0, "GPU": 1.0}


def test_what_an_earlier_batch_still_holds_is_waited_for(cluster: Cluster, make_sweep: MakeSweep) -> None:
    cluster.free = [3.0, 5.0, 8.0]
    assert Room(make_sweep(), {"CPU": 1.0}, trials=99).at_first() == 8
    assert cluster.looks == 3


def test_a_small_batch_waits_for_no_more_than_it_needs(cluster: Cluster, make_sweep: MakeSweep) -> None:
    cluster.free = [3.0]
    assert Room(make_sweep(), {"CPU": 1.0}, trials=2).at_first() == 2
    assert cluster.looks == 1


def test_room_that_others_keep_is_not_waited_for_without_end(
    cluster: Cluster, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormsail.tuning.room._SETTLES_S", 0.0)
    cluster.free = [0.0]
    assert Room(make_sweep(), {"CPU": 1.0}, trials=99).at_first() == 1


def test_more_room_is_believed_when_it_is_seen_twice_in_a_row(
    cluster: Cluster, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormsail.tuning.room._SETTLES_S", 0.0)
    cluster.free = [2.0]
    room = Room(make_sweep(), {"CPU": 1.0}, trials=99)
    assert room.at_first() == 2
    cluster.free = [0.0, 4.0, 0.0, 4.0, 4.0]  # beside the two trials that run
    assert [room.grown(holding=2, left=50) for _ in range(5)] == [False, False, False, False, True]


def test_more_room_is_of_no_use_to_the_last_trials(
    cluster: Cluster, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormsail.tuning.room._SETTLES_S", 0.0)
    cluster.free = [2.0]
    room = Room(make_sweep(), {"CPU": 1.0}, trials=99)
    room.at_first()
    cluster.free = [6.0]
    assert not any(room.grown(holding=2, left=3) for _ in range(3))
