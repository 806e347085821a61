"""The Ray actor around `RunSupervisor`: detached, named, threaded, restartable; thin on purpose."""

from __future__ import annotations

import os
import socket
import threading
import traceback
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stormsail.platform.checkpoint.log_place import LogPlace, place_of_log
from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.config.dump import dump_config, parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.diagnosis import ReplayResult
from stormsail.platform.errors import InternalError, StormsailError
from stormsail.platform.home import Home
from stormsail.platform.messages import (
    CheckpointRef,
    Directive,
    Heartbeat,
    HeartbeatReply,
    Incident,
    JoinRequest,
    Placement,
    WorkerFailure,
)
from stormsail.platform.storage.open import open_store
from stormsail.platform.vault.folder import VaultFolder
from stormsail.supervisor import nodes
from stormsail.supervisor.attempt import run_attempt
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.compacting import RayCompactor
from stormsail.supervisor.evidence.everywhere import look_everywhere
from stormsail.supervisor.ledger import Snapshot
from stormsail.supervisor.phases import RunPhase
from stormsail.supervisor.room import give_back
from stormsail.supervisor.run import ClusterHands, RunSupervisor
from stormsail.supervisor.run_spec import RunSpec
from stormsail.supervisor.vaults import Vaults, own_environment
from stormsail.workers import quiet
from stormsail.workers.entry import NAMESPACE, Assignment
from stormsail.workers.vault_link import RayVaultLink

LINGER_S = 60.0
OTHERS_S = 3.0  # whoever retires this actor has seen the end; other followers look every half second
_EXTENSIONS_DEADLINE_S = 900.0
# Ray Train's own settings, for the controller and the workers that inherit this process's environment.
_RAY_TRAIN = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}


class SupervisorActor:
    """One run's supervisor as an actor. Every method is called by Ray, in a thread of its concurrency group."""

    def __init__(self, spec: RunSpec) -> None:
        os.environ.update(_RAY_TRAIN | quiet.quiet_environment())
        cluster = parse_dump(spec.config).cluster
        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(cluster.start_timeout_s)
        # A process that is stopped, or holds its own lock for ever, answers nobody: Ray ends it.
        os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(max(60.0, cluster.step_timeout_s))
        folder = f"{spec.folder}/logs"
        quiet.redirect_output(Path(folder) / "supervisor.log")
        quiet.quiet_process(full_logs=True)
        self._spec = spec
        self._vaults = Vaults(parse_dump(spec.config), spec.actor, spec.store.url, folder, spec.env)
        self._gone = threading.Event()
        self._others = threading.Event()
        self._refused: StormsailError | None = None
        self._supervisor: RunSupervisor | None = None
        try:
            self._supervisor = RunSupervisor(
                spec,
                owner=f"{socket.gethostname()} pid {os.getpid()}",
                host=ray.util.get_node_ip_address(),
                hands=ClusterHands(
                    prepare=self._prepare,
                    wait_for_room=self._wait_for_room,
                    run_attempt=self._attempt,
                    look=self._vaults.look,
                    clear=self._vaults.end,
                    witness=look_everywhere,
                ),
                log_place=self._log_place(parse_dump(spec.config)),
                compactor=RayCompactor(spec.store),
            )
        except StormsailError as error:
            # Said to whoever looks: an actor that dies while it is made is made again and again, without a word.
            self._refused = error
        threading.Thread(target=self._live, name="stormsail-run", daemon=True).start()

    def _log_place(self, config: RunConfig) -> LogPlace:
        node = ray.get_runtime_context().get_node_id()
        vault = VaultFolder.of(Home.here(), self._spec.store.url, node)
        elsewhere = RayVaultLink(self._spec.actor, node, rank=-1, ranks_here=0)
        return place_of_log(config.checkpoint.gradient_log, open_store(self._spec.store), vault.stores, elsewhere)

    @property
    def _run(self) -> RunSupervisor:
        if self._supervisor is None:
            raise self._refused or InternalError("the supervisor was not made")
        return self._supervisor

    def _live(self) -> None:
        """Drive the run, linger so that followers hear the end, then leave for good."""
        if self._supervisor is not None:
            self._drive(self._supervisor)
        self._gone.wait(LINGER_S)
        self._others.wait(OTHERS_S)
        me = ray.get_actor(self._spec.actor, namespace=NAMESPACE)
        ray.kill(me, no_restart=True)

    def _drive(self, supervisor: RunSupervisor) -> None:
        try:
            supervisor.drive()
        except BaseException as error:  # noqa: BLE001 - the last line of defence: followers must hear of it
            traceback.print_exception(error)
            supervisor.ledger.error = InternalError(f"{type(error).__name__}: {error}", where="supervisor")
            if not supervisor.ledger.record.outcome:
                supervisor.ledger.note("run.failed", error=str(supervisor.ledger.error), exit_code=1)
            supervisor.ledger.over.set()

    def _prepare(self, tell: Any) -> None:
        self._vaults.start()  # meanwhile
        nodes.prepare_nodes(version=self._spec.version, deadline_s=_EXTENSIONS_DEADLINE_S, tell=tell)

    def _wait_for_room(self, config: RunConfig, tell: Any, cancelled: Any) -> None:
        nodes.wait_for_resources(config, use_gpu=nodes.wants_gpu(config), tell=tell, cancelled=cancelled)

    def _attempt(self, config: RunConfig, attempt: int) -> AttemptResult:
        spec = self._spec
        self._vaults.open()
        assignment = Assignment(
            actor=spec.actor,
            attempt=attempt,
            config=dump_config(config),
            store=spec.store,
            import_paths=spec.import_paths,
            log_folder=f"{spec.folder}/logs/attempt-{attempt}",
        )
        try:
            return run_attempt(config, assignment, use_gpu=nodes.wants_gpu(config), storage_path=spec.ray_path)
        finally:
            give_back()

    # Workers: some calls wait, heartbeats must always get through, so each kind has threads of its own.

    def join(self, request: JoinRequest) -> None:
        """See `Hearing.join`."""
        self._run.hearing.join(request)

    @ray.method(concurrency_group="wait")  # type: ignore[untyped-decorator]
    def placement(self, attempt: int, worker_rank: int) -> Placement | None:
        """See `Hearing.placement`."""
        return self._run.hearing.placement(attempt, worker_rank)

    @ray.method(concurrency_group="beat")  # type: ignore[untyped-decorator]
    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        """See `Hearing.heartbeat`."""
        return self._run.hearing.heartbeat(beat)

    @ray.method(concurrency_group="wait")  # type: ignore[untyped-decorator]
    def incident(self, incident: Incident) -> Directive:
        """See `Answering.incident`."""
        return self._run.answering.incident(incident)

    @ray.method(concurrency_group="wait")  # type: ignore[untyped-decorator]
    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        """See `Answering.replayed`."""
        return self._run.answering.replayed(incident, result)

    @ray.method(concurrency_group="wait")  # type: ignore[untyped-decorator]
    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        """See `Answering.restore_failed`."""
        return self._run.answering.restore_failed(ref, problem)

    @ray.method(concurrency_group="wait")  # type: ignore[untyped-decorator]
    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        """See `Answering.replay_failed`."""
        return self._run.answering.replay_failed(generation, step, problem)

    @ray.method(concurrency_group="wait")  # type: ignore[untyped-decorator]
    def part_written(self, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> None:
        """See `Hearing.part_written`."""
        self._run.hearing.part_written(part, meta, took_s)

    def drill_fired(self, index: int, kind: str, step: int, rank: int) -> None:
        """See `Hearing.drill_fired`."""
        self._run.hearing.drill_fired(index, kind, step, rank)

    def worker_failed(self, failure: WorkerFailure) -> None:
        """See `Hearing.worker_failed`."""
        self._run.hearing.worker_failed(failure)

    # People.

    @ray.method(concurrency_group="people")  # type: ignore[untyped-decorator]
    def look(self, cursor: tuple[int, int]) -> Snapshot:
        """See `RunSupervisor.look`."""
        if self._refused is not None:
            return Snapshot((), (), cursor, 0, RunPhase.FAILED, over=True, error=self._refused)
        return self._run.look(cursor)

    @ray.method(concurrency_group="people")  # type: ignore[untyped-decorator]
    def request_stop(self, reason: str) -> None:
        """See `RunSupervisor.request_stop`."""
        self._run.request_stop(reason)

    @ray.method(concurrency_group="people")  # type: ignore[untyped-decorator]
    def retire(self) -> None:
        """Nobody needs this actor any more once the run is over."""
        self._gone.set()


def create(spec: RunSpec) -> Any:
    """Start the supervisor actor of a run and return its handle; of two at once, one gets Ray's `ValueError`.

    It starts on this process's node, which has the package for certain; should that node go, on another.

    Args:
        spec: What to run.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    remote = ray.remote(concurrency_groups={"wait": 64, "beat": 16, "people": 4})(SupervisorActor)
    return remote.options(
        name=spec.actor,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=16,
        scheduling_strategy=here,
        runtime_env=own_environment(spec.env),
    ).remote(spec)
