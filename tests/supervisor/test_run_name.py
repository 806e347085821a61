"""What a run's name means and who owns it; an owner that lives is asked by the tests with a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.support.run_kit import Staff, small_config

from stormsail.platform.config.dump import dump_config
from stormsail.platform.errors import CheckpointError, NoSuchRunError, RunExistsError
from stormsail.platform.lease import LeaseOwner, RunLease
from stormsail.platform.runs import RunPlace, begin_incarnation
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import run_name as module
from stormsail.supervisor.record import Record
from stormsail.supervisor.run_name import actor_name, check_resumable


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
            check_resumable(open_store(root), root, "run")

    def test_without_a_checkpoint_it_is_another_error(
        self, root: StoreAddress, played: Callable[[Callable[[Staff], None]], RunPlace]
    ) -> None:
        played(lambda staff: staff.steps(0, 4))
        with pytest.raises(CheckpointError, match="no checkpoint to go on from"):
            check_resumable(open_store(root), root, "run")

    def test_with_one_it_says_nothing(self, root: StoreAddress, past: RunPlace) -> None:
        check_resumable(open_store(root), root, past.name)


class TestAFinishedRun:
    @pytest.mark.parametrize(("steps", "extends"), [(41, True), (40, False), (39, False)])
    def test_a_finished_run_is_extended_only_by_more_steps(self, steps: int, extends: bool) -> None:
        assert (
            module._extends(Record(config=dump_config(small_config())), small_config(train={"steps": steps})) is extends
        )
