"""Reading how Ray saw an attempt end; running one is tested on a cluster."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayActorError
from ray.train import ControllerError, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.exceptions import InsufficientClusterResourcesError, WorkerGroupStartupTimeoutError

from stormsail.supervisor.attempt import _failed_group, _failed_workers, torch_config, trainer_class
from stormsail.supervisor.attempt_result import AttemptResult

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own imports


class HealthCheckFailedError(RuntimeError):
    """How Ray Train wraps what its poll ran into."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a health check failed")
        self.health_check_failure = cause


def test_a_worker_that_raised_did_not_die() -> None:
    found = _failed_workers(WorkerGroupError("failed", {1: ValueError("bad batch\nmore lines")}))
    assert found == AttemptResult(ok=False, errors={1: "ValueError: bad batch"}, died=())


@pytest.mark.parametrize("death", [RayActorError(), ActorDiedError()])
def test_a_lost_process_is_told_from_the_others_that_it_broke(death: Exception) -> None:
    found = _failed_workers(
        WorkerGroupError("failed", {0: RuntimeError("connection closed"), 1: HealthCheckFailedError(death)})
    )
    assert found.died == (1,)
    assert found.errors.keys() == {0, 1}


def test_an_error_without_text_is_named_by_its_type() -> None:
    assert _failed_workers(WorkerGroupError("failed", {0: KeyError()})).errors == {0: "KeyError: "}


def test_ray_starts_no_process_group_of_its_own() -> None:
    config = torch_config("gloo")
    backend = config.backend_cls()
    assert backend.on_start(None, config) is None
    assert backend.on_training_start(None, config) is None
    assert backend.on_shutdown(None, config) is None


def test_ray_is_told_what_a_torch_config_tells_it() -> None:
    ours, theirs = torch_config("gloo"), TorchConfig(backend="gloo")
    assert ours.backend == theirs.backend
    assert ours.framework == theirs.framework
    assert ours.train_func_context is theirs.train_func_context
    assert ours.backend_cls.share_cuda_visible_devices == theirs.backend_cls.share_cuda_visible_devices
    assert ours.to_dict().items() <= theirs.to_dict().items()


@pytest.mark.slow  # waits, or starts a process, for longer than a fast test may
def test_the_controller_reads_it_without_torch() -> None:
    code = (
        "import pickle, sys; config = pickle.loads(sys.stdin.buffer.read()); "
        "config.backend_cls, config.framework, config.to_dict(); sys.exit('torch' in sys.modules)"
    )
    packed = cloudpickle.dumps(torch_config("gloo"))
    subprocess.run([sys.executable, "-c", code], input=packed, check=True, timeout=60)


def test_a_result_travels_between_processes() -> None:
    result = AttemptResult(ok=False, errors={-1: "x"}, died=(2,))
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize(
    ("failure", "no_room"),
    [
        (WorkerGroupStartupTimeoutError(2), True),
        (InsufficientClusterResourcesError("1 GPU wanted, none there"), True),
        (RuntimeError("the controller broke"), False),
    ],
)
def test_no_room_for_the_workers_is_told_from_a_controller_that_broke(failure: Exception, no_room: bool) -> None:
    found = _failed_group(ControllerError(failure))
    assert (found.ok, found.no_room) == (False, no_room)
    assert type(failure).__name__ in found.errors[-1]


def test_no_process_is_started_for_datasets_that_nobody_has_or_beside_the_supervisor() -> None:
    plain, ours = (
        [
            type(made).__name__
            for made in kind(print, scaling_config=ScalingConfig(num_workers=2))._create_default_callbacks()
        ]
        for kind in (TorchTrainer, trainer_class())
    )
    left_out = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
    assert left_out < set(plain)
    assert ours == [name for name in plain if name not in left_out]
