"""The function that Ray Train calls in every worker process: set up, join, run the loop, and say why it ended.

This is the one place of the package that catches every exception: a worker that dies without a word costs
somebody a night.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stormsail.platform.checkpoint.log_place import LogPlace, place_of_log
from stormsail.platform.config.dump import parse_dump
from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.messages import JoinRequest, Phase, Placement
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import ObjectStore, StoreAddress
from stormsail.platform.vault.folder import VaultFolder
from stormsail.workers import quiet, stacks
from stormsail.workers.extensions import extension_folder, set_extension_environment
from stormsail.workers.failure import failure_of
from stormsail.workers.heartbeat import HeartbeatThread, supervisor_sender
from stormsail.workers.places import Places
from stormsail.workers.supervisor_link import CALL_TIMEOUT_S, SupervisorLink

if TYPE_CHECKING:
    from stormsail.workers.gradient_log import GradientLog
    from stormsail.workers.snapshot import SnapshotWriter

NAMESPACE = "stormsail"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the supervisor tells every worker of an attempt before it starts.

    Attributes:
        actor: Name of the run's supervisor actor.
        attempt: Number of the attempt, from 1.
        config: The run's configuration, as `dump_config` wrote it.
        store: The run's store.
        import_paths: Folders that the user's own modules are imported from.
        log_folder: Where this attempt's logs go on each node.
    """

    actor: str
    attempt: int
    config: str
    store: StoreAddress
    import_paths: tuple[str, ...]
    log_folder: str


def worker_main(settings: dict[str, Any]) -> None:
    """Run one worker of one attempt.

    Args:
        settings: `{"assignment": Assignment}`; Ray Train wants a dict.
    """
    assignment: Assignment = settings["assignment"]
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    _prepare_process(assignment, rank)
    worker = _Worker(assignment, rank)
    try:
        worker.run()
    except BaseException as error:
        worker.report_failure(error)
        raise
    finally:
        worker.beat.close()


def _prepare_process(assignment: Assignment, rank: int) -> None:
    folder = Path(assignment.log_folder)
    folder.mkdir(parents=True, exist_ok=True)
    quiet.redirect_output(folder / f"rank-{rank}.log")
    quiet.quiet_process(full_logs=True)
    stacks.register_stacks(stacks.stacks_file(folder, rank))
    set_extension_environment(extension_folder(Home.here()))
    for path in reversed(assignment.import_paths):
        resolved = str(Path(path).resolve())
        if resolved not in sys.path:
            sys.path.insert(0, resolved)


class _Worker:
    def __init__(self, assignment: Assignment, worker_rank: int) -> None:
        import ray
        import ray.train

        self.assignment = assignment
        self.worker_rank = worker_rank
        self.local_rank = ray.train.get_context().get_local_rank()
        self.config: RunConfig = parse_dump(assignment.config)
        actor = ray.get_actor(assignment.actor, namespace=NAMESPACE)
        self.link = SupervisorLink(actor, worker_rank)
        self.beat = HeartbeatThread(
            supervisor_sender(actor, timeout_s=CALL_TIMEOUT_S),
            attempt=assignment.attempt,
            rank=worker_rank,
            flight=stacks.flight_record,
        )
        self.session: Any = None
        self.log: GradientLog | None = None

    # --------------------------------------------------------- setting up, running

    def run(self) -> None:
        import torch

        from stormsail.workers import factories, world
        from stormsail.workers.batches import BatchReader
        from stormsail.workers.deltas import deltas_for
        from stormsail.workers.evaluation import Evaluator
        from stormsail.workers.gradient_log import gradient_log_for
        from stormsail.workers.inject import Injector
        from stormsail.workers.loop import StepLoop
        from stormsail.workers.restore import Nearby
        from stormsail.workers.session import Session
        from stormsail.workers.snapshot import SnapshotWriter

        device = _device()
        self._set_numerics()
        self.beat.at(Phase.BUILD, -1)
        source = factories.build_data(self.config.data)
        held_out = factories.held_out_of(source, self.config)
        placement = self._join(device, source.digest)
        joined = placement.world
        self.beat.at(Phase.JOIN, -1, generation=joined.generation, rank=joined.rank)
        world.form(
            joined, local_rank=self.local_rank, device=device, timeout_s=self.config.cluster.collective_timeout_s
        )
        store = open_store(self.assignment.store)
        places = self._places(joined.rank, device)
        injector = Injector(
            self.config.drill.faults, rank=joined.rank, fired=dict(placement.fired), announce=self._announce
        )
        snapshots = SnapshotWriter(
            store,
            rank=joined.rank,
            world_size=joined.world_size,
            deliver=self._deliver_part,
            missed=self._missed,
            deadline_s=self.config.checkpoint.deadline_s,
            written=injector.during_save,
            deltas=deltas_for(self.config, store, joined.world_size, self._in_full),
            acquire=places.acquire,
            sealed=places.sealed,
        )
        nearby = Nearby(lambda ref: chain(snapshots.images(ref), places.images(ref)), places.trouble)
        log_place = self._log_place(store)
        self.log = gradient_log_for(
            self.config, log_place, rank=joined.rank, world_size=joined.world_size, broken=self._log_broken
        )
        reader = BatchReader(
            source,
            rank=joined.rank,
            world_size=joined.world_size,
            global_batch=self.config.train.global_batch,
            micro_batch=self.config.train.micro_batch,
            sequence_tokens=self.config.data.sequence_tokens,
        )
        self.session = Session(
            self.config,
            joined,
            device=device,
            store=store,
            samples=reader.samples,
            supervisor=self.link,
            beat=self.beat,
            on_generation=lambda generation: self._begin_generation(generation, snapshots),
            nearby=nearby,
            log_source=log_place,
        )
        loop = StepLoop(
            self.session,
            source=reader,
            supervisor=self.link,
            beat=self.beat,
            injector=injector,
            snapshots=snapshots,
            log=self.log,
            evaluator=None if held_out is None else Evaluator(self.config, held_out, joined, device=device),
        )
        outcome = loop.run(placement.directive)
        self.beat.at(Phase.FINISH, self.session.position.step)
        snapshots.close(self.config.checkpoint.deadline_s)
        if self.log is not None:
            self.log.close(self.config.checkpoint.deadline_s)
        torch.distributed.barrier()  # nobody leaves while a peer still needs the group
        self.beat.at(Phase.DONE, self.session.position.step)
        if joined.rank == 0:
            self.beat.line(
                "loop.ended", outcome=outcome, step=self.session.position.step, applied=self.session.position.applied
            )
        world.leave()

    def _places(self, rank: int, device: Any) -> Places:
        """Where this rank's snapshots go, and where they may be found."""
        import ray.train

        from stormsail.workers.copying import pin
        from stormsail.workers.vault_link import RayVaultLink

        folder, node = self._vault()
        ranks_here = ray.train.get_context().get_local_world_size()
        section = self.config.checkpoint
        link = RayVaultLink(self.assignment.actor, node, rank, ranks_here) if section.vault_gib != 0 else None
        return Places(rank, section.ring, folder, link, self.beat.line, pin if device.type == "cuda" else None)

    def _vault(self) -> tuple[VaultFolder, str]:
        """The run's folder in this node's memory, and Ray's id of the node."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return VaultFolder.of(Home.here(), self.assignment.store.url, node), node

    def _log_place(self, store: ObjectStore) -> LogPlace:
        from stormsail.workers.vault_link import RayVaultLink

        folder, node = self._vault()
        elsewhere = RayVaultLink(self.assignment.actor, node, self.worker_rank, ranks_here=0)
        return place_of_log(self.config.checkpoint.gradient_log, store, folder.stores, elsewhere)

    def _begin_generation(self, generation: int, snapshots: SnapshotWriter) -> None:
        snapshots.drop_before(generation)
        if self.log is not None:
            self.log.drop_before(generation)

    def _set_numerics(self) -> None:
        import torch

        from stormsail.workers import lean_imports
        from stormsail.workers.factories import brings_own_code

        if not brings_own_code(self.config):  # which finds torch as it is
            lean_imports.defer_compiler()
        torch.set_num_threads(self.config.train.threads)
        if self.config.train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            lean_imports.set_deterministic(deterministic=True)

    def _join(self, device: Any, source_digest: str) -> Placement:
        import ray

        request = JoinRequest(
            attempt=self.assignment.attempt,
            worker_rank=self.worker_rank,
            node_ip=ray.util.get_node_ip_address(),
            hostname=socket.gethostname(),
            pid=os.getpid(),
            device=str(device),
            data_digest=source_digest,
        )
        self.beat.at(Phase.JOIN, -1)
        return self.link.join(request, limit_s=self.config.cluster.start_timeout_s)

    # ------------------------------------------------------ what the wiring is told

    def _announce(self, index: int, kind: str, step: int) -> None:
        self.beat.flush()  # what this rank has done counts, though it may be dead a moment later
        if self.log is not None:
            self.log.wait(CALL_TIMEOUT_S)  # likewise: a drill is no race with the write of the step before
        self.link.drill_fired(index, kind, step)

    def _deliver_part(self, part: Any, meta: Any, took_s: float) -> None:
        problem = self.link.part_written(part, meta, took_s)
        if problem is not None:
            self._missed(part.generation, part.step, f"the committer did not take it: {problem}")

    def _in_full(self, generation: int, step: int, why: str) -> None:
        self.beat.line("checkpoint.in_full", generation=generation, step=step, rank=self.worker_rank, why=why)

    def _log_broken(self, generation: int, step: int, why: str) -> None:
        self.beat.line("log.broken", generation=generation, step=step, rank=self.worker_rank, why=why)

    def _missed(self, generation: int, step: int, why: str) -> None:
        self.beat.line("checkpoint.missed", generation=generation, step=step, rank=self.worker_rank, why=why)

    # --------------------------------------------------------------------- failing

    def report_failure(self, error: BaseException) -> None:
        """Tell the supervisor why this worker dies; if even that fails, the log has it."""
        step = self.session.position.step if self.session is not None else -1
        failure = failure_of(error, attempt=self.assignment.attempt, rank=self.worker_rank, step=step)
        traceback.print_exception(error)
        self.link.worker_failed(failure)


def _device() -> Any:
    import ray.train.torch
    import torch

    return ray.train.torch.get_device() if torch.cuda.is_available() else torch.device("cpu")
