"""A worker's line to the supervisor, over Ray: what is asked and awaited. Heartbeats, which nobody awaits, have their own.

Every call has a limit. A supervisor that does not answer is a lost peer to the worker.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from stormsail.platform.checkpoint.manifest import CheckpointMeta, RankPart
from stormsail.platform.diagnosis import ReplayResult
from stormsail.platform.errors import WorkerFaultError
from stormsail.platform.messages import CheckpointRef, Directive, Incident, JoinRequest, Placement, WorkerFailure

CALL_TIMEOUT_S = 120.0
_CONSULT_TIMEOUT_S = 600.0


class SupervisorLink:
    """The supervisor, as a worker asks it; what rank 0 asks is the `Supervisor` of `session.py`.

    All but `part_written` and `worker_failed` raise the supervisor's own errors as what they are, and a
    `WorkerFaultError` if it does not answer.

    Args:
        actor: Handle of the run's supervisor actor.
        rank: This worker's rank, as Ray Train counts.
    """

    def __init__(self, actor: Any, rank: int) -> None:
        self._actor = actor
        self._rank = rank

    def join(self, request: JoinRequest, *, limit_s: float) -> Placement:
        """Ask for a place in the world and wait until it is formed.

        Args:
            request: Who asks.
            limit_s: How long the other workers may take.
        """
        self._call("join", request)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            placement: Placement | None = self._call("placement", request.attempt, request.worker_rank)
            if placement is not None:
                return placement
        raise WorkerFaultError(
            f"no world was formed within {limit_s:.0f} s",
            where=f"worker {self._rank}",
            todo="look at the logs of the workers that did not join, or raise cluster.start_timeout_s",
        )

    def incident(self, incident: Incident) -> Directive:
        """Report an incident and wait for the decision, or for the experiment that it needs."""
        directive: Directive = self._call("incident", incident, timeout_s=_CONSULT_TIMEOUT_S)
        return directive

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        """Report what the experiment has shown and wait for the decision."""
        directive: Directive = self._call("replayed", incident, result, timeout_s=_CONSULT_TIMEOUT_S)
        return directive

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        """Report a checkpoint that could not be loaded and wait for another decision."""
        directive: Directive = self._call("restore_failed", ref, problem, timeout_s=_CONSULT_TIMEOUT_S)
        return directive

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        """Report that the gradient log could not be replayed from a step on and wait for a decision without that."""
        directive: Directive = self._call("replay_failed", generation, step, problem, timeout_s=_CONSULT_TIMEOUT_S)
        return directive

    def drill_fired(self, index: int, kind: str, step: int) -> None:
        """Say that a fault of the drill is about to strike here."""
        self._call("drill_fired", index, kind, step, self._rank)

    def part_written(self, part: RankPart, meta: CheckpointMeta | None, took_s: float) -> str | None:
        """Hand over what this rank has saved; returns why it was not taken, or None."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            ray.get(self._actor.part_written.remote(part, meta, took_s), timeout=CALL_TIMEOUT_S)
        except (RayActorError, GetTimeoutError, RayTaskError) as error:
            return str(error)
        return None

    def worker_failed(self, failure: WorkerFailure) -> None:
        """Say why this worker dies. If even that fails, it is written to this process's log."""
        import ray
        from ray.exceptions import RayError

        try:
            ray.get(self._actor.worker_failed.remote(failure), timeout=CALL_TIMEOUT_S)
        except RayError as unheard:
            sys.stderr.write(f"stormsail: the supervisor did not hear of this failure: {unheard}\n")

    def _call(self, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Call the supervisor and wait; its own errors come back as what they are."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            return ray.get(getattr(self._actor, method).remote(*args), timeout=timeout_s)
        except RayTaskError as error:
            raise error.cause from error
        except (GetTimeoutError, RayActorError) as error:
            raise WorkerFaultError(
                f"the supervisor did not answer {method!r} within {timeout_s:.0f} s", where=f"worker {self._rank}"
            ) from error
