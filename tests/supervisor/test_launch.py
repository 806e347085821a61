"""What a run's name means and which configuration rules; whatever needs a cluster is tested with one."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.run_kit import Staff, small_config

from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.errors import CheckpointError, ConfigError, NoSuchRunError, RunExistsError
from stormsail.platform.home import Home
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.runs import RunPlace, begin_incarnation, find_run
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import launch as module
from stormsail.supervisor import places
from stormsail.supervisor.launch import LaunchOptions, actor_name, outcome_of, twin_of
from stormsail.supervisor.record import Record

MUST = LaunchOptions(must_resume=True)


def stored(**changes: object) -> Record:
    return Record(config=dump_config(small_config(**changes)))


class TestNames:
    def test_incarnations_of_one_name_share_the_actor_so_that_only_one_can_live(self, root: StoreAddress) -> None:
        names = {actor_name(begin_incarnation(root, "run")) for _ in range(2)}
        assert names == {"run:run"}

    def test_a_name_that_somebody_else_is_just_taking_is_refused(
        self, root: StoreAddress, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put = LocalStore.put

        def quicker(store: LocalStore, key: str, data: bytes, **conditions: object) -> object:
            monkeypatch.undo()
            begin_incarnation(root, "run")
            return put(store, key, data, **conditions)  # type: ignore[arg-type] # passed through as they came

        monkeypatch.setattr(LocalStore, "put", quicker)
        with pytest.raises(RunExistsError, match="at this very moment"):
            module._begin(root, "run")

    @pytest.mark.parametrize("fresh", [False, True])
    def test_who_begins_anew_and_comes_too_late_leaves_the_name_to_the_other(
        self, root: StoreAddress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: bool
    ) -> None:
        theirs = begin_incarnation(root, "run")

        def taken(*_: object) -> None:
            raise RunExistsError("started by somebody else")

        for name in ("connect", "own_host", "_refuse_live_owner", "_refuse_owner_elsewhere", "probe_store"):
            monkeypatch.setattr(module, name, lambda *_, **__: None)
        monkeypatch.setattr(places, "root_address", lambda *_: root)
        monkeypatch.setattr(module, "_create", taken)
        with pytest.raises(RunExistsError, match="somebody else"):
            module.launch(
                small_config(),
                LaunchOptions(fresh=fresh),
                home=Home(tmp_path / "home"),
                config_folder=tmp_path,
                notify=print,
            )
        assert find_run(root, "run") == theirs


class TestOwner:
    def test_one_whose_clock_had_jumped_ahead_is_passed_by_who_takes_the_run_over(self, root: StoreAddress) -> None:
        place = begin_incarnation(root, "run")
        owner = LeaseOwner("gone", "elsewhere", 7, "boot")
        RunLease.acquire(place.store(), owner, now=time.time() + 86400.0)
        with pytest.raises(RunExistsError, match="elsewhere"):
            module._refuse_owner_elsewhere(place, take_over=False)
        module._refuse_owner_elsewhere(place, take_over=True)

    def test_one_that_is_alive_is_refused_whoever_asks(self, root: StoreAddress) -> None:
        place = begin_incarnation(root, "run")
        RunLease.acquire(place.store(), LeaseOwner("one", "elsewhere", 7, "boot"), now=time.time())
        with pytest.raises(RunExistsError, match="elsewhere"):
            module._refuse_owner_elsewhere(place, take_over=True)


class TestMustResume:
    def test_without_a_run_it_names_what_there_is(self, root: StoreAddress) -> None:
        with pytest.raises(NoSuchRunError):
            module._check_resumable(open_store(root), root, "run", MUST)

    def test_without_a_checkpoint_it_is_another_error(
        self, root: StoreAddress, played: Callable[[Callable[[Staff], None]], RunPlace]
    ) -> None:
        played(lambda staff: staff.steps(0, 4))
        with pytest.raises(CheckpointError, match="no checkpoint to go on from"):
            module._check_resumable(open_store(root), root, "run", MUST)

    def test_with_one_it_says_nothing(self, root: StoreAddress, past: RunPlace) -> None:
        module._check_resumable(open_store(root), root, past.name, MUST)

    def test_who_does_not_insist_may_begin_anew(self, root: StoreAddress) -> None:
        module._check_resumable(open_store(root), root, "run", LaunchOptions())


class TestChanges:
    def test_nothing_changed_is_nothing_to_say(self) -> None:
        assert module._allowed_changes(stored(), small_config()) == ()

    def test_what_may_change_is_put_into_words_for_the_journal(self) -> None:
        asked = small_config(train={"steps": 80, "micro_batch": 4})
        assert module._allowed_changes(stored(), asked) == (
            "train.steps: 40 -> 80",
            "train.micro_batch: 8 -> 4 (no longer bit for bit)",
        )

    def test_what_makes_it_another_experiment_is_refused_key_by_key(self) -> None:
        asked = small_config(seed=2, optimizer={"lr": 1.0})
        with pytest.raises(ConfigError) as caught:
            module._allowed_changes(stored(), asked)
        assert "seed: 1 -> 2" in str(caught.value)
        assert "optimizer.lr: 0.001 -> 1.0" in str(caught.value)

    @pytest.mark.parametrize(("steps", "extends"), [(41, True), (40, False), (39, False)])
    def test_a_finished_run_is_extended_only_by_more_steps(self, steps: int, extends: bool) -> None:
        assert module._extends(stored(), small_config(train={"steps": steps})) is extends


class TestSpec:
    @pytest.fixture
    def place(self, root: StoreAddress) -> RunPlace:
        return begin_incarnation(root, "run")

    def test_it_travels_to_another_process_and_the_configuration_comes_back(self, place: RunPlace) -> None:
        config = small_config()
        spec = module._spec(config, place, Home(Path("/home")), Path(), LaunchOptions(take_over=True))
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert parse_dump(spec.config) == config
        assert (spec.folder, spec.ray_path) == ("/home/runs/run/1", "/home/runs/run/1/ray")
        assert spec.take_over

    def test_on_several_nodes_ray_keeps_its_files_where_all_can_reach_them(self, place: RunPlace) -> None:
        config = small_config(cluster={"workers": 2, "shared_path": "/shared"})
        assert module._spec(config, place, Home(Path("/home")), Path(), LaunchOptions()).ray_path == "/shared"

    def test_each_start_is_a_claim_of_its_own(self, place: RunPlace) -> None:
        owners = {
            module._spec(small_config(), place, Home(Path("/h")), Path(), LaunchOptions()).owner_id for _ in range(2)
        }
        assert len(owners) == 2

    def test_modules_are_looked_for_where_the_command_and_the_file_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert module._import_paths(Path("conf")) == (str(tmp_path), str(tmp_path / "conf"))
        assert module._import_paths(tmp_path) == (str(tmp_path),)

    def test_inside_a_ray_job_they_are_relative_to_where_ray_unpacks_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
        assert module._import_paths(tmp_path / "conf") == (".", "conf")
        assert module._import_paths(Path("/elsewhere")) == (".", "/elsewhere")


def test_a_twin_is_the_same_run_without_faults_and_evaluations_under_another_name() -> None:
    drill = {"twin_step": 20, "faults": [{"kind": "kill", "step": 5}]}
    config = small_config(drill=drill, eval={"every_steps": 10}, checkpoint={"keep_best": True})
    twin = twin_of(config)
    assert twin.name == "run-twin"
    assert twin.drill == small_config().drill
    assert twin.model_copy(update={"name": config.name, "drill": config.drill}) == config.unevaluated()


def test_the_outcome_is_what_the_journal_says(past: RunPlace) -> None:
    assert outcome_of(past).outcome == "finished"
