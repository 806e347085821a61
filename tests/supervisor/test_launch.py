"""Which configuration rules and what a supervisor is told; whatever needs a cluster is tested with one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.support.run_kit import small_config

from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.errors import ConfigError, NoSuchRunError, RunExistsError, StorageError
from stormsail.platform.home import Home
from stormsail.platform.runs import RunPlace, begin_incarnation, find_run
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import launch as module
from stormsail.supervisor import places, run_name
from stormsail.supervisor.launch import LaunchOptions
from stormsail.supervisor.record import Record


def stored(**changes: object) -> Record:
    return Record(config=dump_config(small_config(**changes)))


class TestNames:
    @pytest.mark.parametrize("fresh", [False, True])
    def test_who_begins_anew_and_comes_too_late_leaves_the_name_to_the_other(
        self, root: StoreAddress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: bool
    ) -> None:
        theirs = begin_incarnation(root, "run")

        def taken(*_: object) -> None:
            raise RunExistsError("started by somebody else")

        for name in ("connect", "own_host", "probe_store"):
            monkeypatch.setattr(module, name, lambda *_, **__: None)
        for name in ("_refuse_live_owner", "_refuse_owner_elsewhere"):
            monkeypatch.setattr(run_name, name, lambda *_, **__: None)
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


class TestMustResume:
    def test_who_does_not_insist_may_begin_anew(
        self, root: StoreAddress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def beyond(*_: object) -> None:
            raise StorageError("beyond the question")

        monkeypatch.setattr(places, "root_address", lambda *_: root)
        monkeypatch.setattr(module, "probe_store", beyond)

        def launch(options: LaunchOptions) -> None:
            module.launch(small_config(), options, home=Home(tmp_path), config_folder=tmp_path, notify=print)

        with pytest.raises(StorageError, match="beyond the question"):
            launch(LaunchOptions())
        with pytest.raises(NoSuchRunError):
            launch(LaunchOptions(must_resume=True))


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
