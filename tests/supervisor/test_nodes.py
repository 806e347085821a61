"""Questions to the nodes; the answers are given by the test, in place of Ray's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from tests.support.run_kit import small_config

from stormsail.platform.errors import ClusterError
from stormsail.supervisor import nodes

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own imports


class Told:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __call__(self, kind: str, **_data: object) -> None:
        self.kinds.append(kind)


@pytest.fixture
def told() -> Told:
    return Told()


class TestWaitingForRoom:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nodes, "_POLL_S", 0.0)
        monkeypatch.setattr(nodes, "give_back", lambda: self.given.append("back"))
        self.given: list[str] = []

    @pytest.fixture
    def free(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
        """What Ray says is free, at one look after the other; the last answer stays."""
        answers: list[dict[str, float]] = []
        monkeypatch.setattr(ray, "available_resources", lambda: answers.pop(0) if len(answers) > 1 else answers[0])
        return answers

    def wait(self, told: Told, *, use_gpu: bool = False, wait_s: float = 20.0, cancelled: bool = False) -> None:
        config = small_config(cluster={"workers": 2, "wait_s": wait_s})
        nodes.wait_for_resources(config, use_gpu=use_gpu, tell=told, cancelled=lambda: cancelled)

    def test_room_at_once_is_not_worth_a_word(self, told: Told, free: list[dict[str, float]]) -> None:
        free.append({"CPU": 2.0})
        self.wait(told)
        assert told.kinds == self.given == []

    def test_resources_of_processes_that_just_ended_get_a_moment(
        self, told: Told, free: list[dict[str, float]]
    ) -> None:
        free += [{"CPU": 1.0}, {}, {"CPU": 2.0}]
        self.wait(told)
        assert told.kinds == []

    def test_what_a_dead_controller_left_is_given_back_before_anything_is_waited_for(
        self, told: Told, free: list[dict[str, float]]
    ) -> None:
        free += [{}, {"CPU": 2.0}]
        self.wait(told)
        assert self.given == ["back"]

    def test_a_longer_wait_is_told_and_so_is_its_end(self, told: Told, free: list[dict[str, float]]) -> None:
        free += [{"CPU": 1.0}] * 20 + [{"CPU": 2.0}]
        self.wait(told)
        assert told.kinds == ["resources.waiting", "resources.ready"]

    def test_no_room_in_time_says_what_is_short(self, told: Told, free: list[dict[str, float]]) -> None:
        free.append({"CPU": 4.0, "GPU": 1.0})
        with pytest.raises(ClusterError, match="GPU 2 wanted, 1 free") as caught:
            self.wait(told, use_gpu=True, wait_s=1e-9)
        assert caught.value.exit_code == 75

    def test_whoever_calls_it_off_does_not_wait(self, told: Told, free: list[dict[str, float]]) -> None:
        free.append({})
        self.wait(told, cancelled=True)
        assert told.kinds == []


class TestAccelerators:
    @pytest.mark.parametrize(
        ("wanted", "there", "found"),
        [("gpu", {}, True), ("cpu", {"GPU": 4.0}, False), ("auto", {"GPU": 1.0}, True), ("auto", {}, False)],
    )
    def test_auto_takes_gpus_where_there_are_any(
        self, monkeypatch: pytest.MonkeyPatch, wanted: str, there: dict[str, float], found: bool
    ) -> None:
        monkeypatch.setattr(ray, "cluster_resources", lambda: there)
        config = small_config(cluster={"workers": 2, "accelerator": wanted})
        assert nodes.wants_gpu(config) is found


class TestAnswersOfNodes:
    def check(self, answer: Any) -> None:
        def get(_task: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        asked: Any = SimpleNamespace(get=get, exceptions=ray.exceptions)
        nodes._check_answer(asked, object(), "10.0.0.7", "0.1.0")

    def failed(self, cause: Exception) -> Any:
        return ray.exceptions.RayTaskError("prepare", "Traceback ...", cause)

    def test_the_same_version_is_well(self) -> None:
        self.check("0.1.0")

    def test_another_version_is_named_with_its_node(self) -> None:
        with pytest.raises(ClusterError, match=r"the node has stormsail 0\.0\.9, the driver 0\.1\.0") as caught:
            self.check("0.0.9")
        assert caught.value.where == "node 10.0.0.7"

    def test_a_node_without_the_package_says_how_to_bring_it_there(self) -> None:
        with pytest.raises(ClusterError, match="no module 'stormsail'") as caught:
            self.check(self.failed(ModuleNotFoundError("x", name="stormsail")))
        assert "image of every node" in caught.value.todo

    def test_a_build_that_failed_there_keeps_its_advice(self) -> None:
        with pytest.raises(ClusterError, match="no compiler") as caught:
            self.check(self.failed(ClusterError("no compiler", todo="install one")))
        assert (caught.value.where, caught.value.todo) == ("node 10.0.0.7", "install one")

    def test_anything_else_is_said_as_it_came(self) -> None:
        with pytest.raises(ClusterError, match="the check failed: disk on fire"):
            self.check(self.failed(OSError("disk on fire")))
