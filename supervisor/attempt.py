"""One attempt: a `TorchTrainer` whose processes Ray starts, and whose world is formed by the supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.train.backend import BackendConfig
    from ray.train.torch import TorchTrainer

from stormsail.platform.config.model import RunConfig
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.workers.entry import Assignment, worker_main

# What Ray Train raises where it got no placement group; the types have no public name.
_NO_ROOM = ("WorkerGroupStartupTimeoutError", "InsufficientClusterResourcesError")


def torch_config(backend: str) -> BackendConfig:
    """What `TorchConfig` says of a Ray Train backend, without its process group: the supervisor forms the world.

    It is no `TorchConfig`, because Ray Train's controller would have to import torch to read one.
    """
    from ray.train.backend import Backend, BackendConfig

    class WorldBackend(Backend):  # type: ignore[misc]  # Ray has no types
        """Ray brings the processes, and lets those of a node see each other's GPUs, as NCCL wants it."""

        share_cuda_visible_devices = True

    class WorldConfig(BackendConfig):  # type: ignore[misc]  # Ray has no types
        """Its answers to what Ray asks."""

        def __init__(self) -> None:
            self.backend = backend

        @property
        def backend_cls(self) -> type[WorldBackend]:
            return WorldBackend

        @property
        def train_func_context(self) -> Any:
            from ray.train.torch.config import TorchConfigContextManager

            return TorchConfigContextManager

        @property
        def framework(self) -> Any:
            from ray.train.v2._internal.util import TrainingFramework

            return TrainingFramework.TORCH

        def to_dict(self) -> dict[str, Any]:
            return {"backend": backend}

    return WorldConfig()


def trainer_class() -> type[TorchTrainer]:
    """A `TorchTrainer` without two processes of Ray Train's that would cost each start some seconds on a small machine.

    One hands out Ray datasets: data come from the run's own source. The other gives the workers' room back if the
    controller dies: the supervisor does (`room.py`).
    """
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.callbacks import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

    left_out = DatasetsCallback | PlacementGroupCleanerCallback

    class WorldTrainer(TorchTrainer):  # type: ignore[misc]  # Ray has no types
        """The trainer of an attempt."""

        def _create_default_callbacks(self) -> list[Any]:
            return [made for made in super()._create_default_callbacks() if not isinstance(made, left_out)]

    return WorldTrainer


def run_attempt(config: RunConfig, assignment: Assignment, *, use_gpu: bool, storage_path: str) -> AttemptResult:
    """Start the workers and wait until all have ended. Blocks; call it from a thread of the supervisor.

    Args:
        config: The run.
        assignment: What every worker is told.
        use_gpu: Whether a worker gets a GPU.
        storage_path: Where Ray keeps its own files; shared by all nodes if there are several.
    """
    from ray.exceptions import RayError
    from ray.train import ControllerError, FailureConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
    from ray.train import RunConfig as RayRunConfig

    trainer = trainer_class()(
        worker_main,
        train_loop_config={"assignment": assignment},
        torch_config=torch_config("nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.cluster.workers,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": config.cluster.cpus_per_worker, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=RayRunConfig(
            # A new name for each attempt: Ray resumes by name from a list of its own, and ours is the one that counts.
            name=f"{config.name}-attempt-{assignment.attempt}",
            storage_path=storage_path,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        return _failed_workers(error)
    except (ControllerError, TrainingFailedError, RayError) as error:  # the last: Ray Train's controller itself died
        return _failed_group(error)
    return AttemptResult(ok=True, errors={})


def _failed_group(error: Exception) -> AttemptResult:
    cause = getattr(error, "controller_failure", error)
    return AttemptResult(ok=False, errors={-1: _first_line(cause)}, no_room=type(cause).__name__ in _NO_ROOM)


def _failed_workers(error: Any) -> AttemptResult:
    from ray.exceptions import RayActorError

    # A lost process arrives wrapped: the health check failed, because the actor died.
    failures: dict[int, Any] = {
        rank: getattr(cause, "health_check_failure", cause) for rank, cause in dict(error.worker_failures).items()
    }
    died = tuple(sorted(rank for rank, cause in failures.items() if isinstance(cause, RayActorError)))
    return AttemptResult(ok=False, errors={rank: _first_line(cause) for rank, cause in failures.items()}, died=died)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
