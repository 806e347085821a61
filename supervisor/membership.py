"""Who is in the world: workers ask for a place, and when all have, the supervisor forms the next generation's world.

The TCP store that the ranks meet at lives in this process, so that the death of any rank, rank 0 too, is one
and the same case. Ranks are assigned densely and in node order, never remembered.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stormsail.platform.messages import JoinRequest, World


def assign_ranks(requests: list[JoinRequest]) -> dict[int, int]:
    """Dense ranks by worker index, kept together by node (pure).

    Returns:
        Rank by worker index. The node of worker 0 comes first, so that a run on one node keeps Ray's order.
    """
    first_on_node: dict[str, int] = {}
    for request in sorted(requests, key=lambda item: item.worker_rank):
        first_on_node.setdefault(request.node_ip, request.worker_rank)
    ordered = sorted(requests, key=lambda item: (first_on_node[item.node_ip], item.worker_rank))
    return {request.worker_rank: rank for rank, request in enumerate(ordered)}


@dataclass(slots=True)
class Membership:
    """Collects the joins of one attempt and forms its world.

    Attributes:
        host: Address that workers reach this process at.
        timeout_s: Limit of the meeting at the TCP store.
    """

    host: str
    timeout_s: float
    _attempt: int = 0
    _generation: int = 0
    _expected: int = 0
    _requests: dict[int, JoinRequest] = field(default_factory=dict)
    _worlds: dict[int, World] = field(default_factory=dict)
    _store: Any = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def expect(self, *, attempt: int, generation: int, workers: int) -> None:
        """Start over: joins of older attempts count no more."""
        with self._changed:
            self._attempt, self._generation, self._expected = attempt, generation, workers
            self._requests, self._worlds = {}, {}
            self._store = None

    def join(self, request: JoinRequest) -> bool:
        """Register a worker. Returns True if the world was formed by this join; a stale attempt is refused."""
        with self._changed:
            if request.attempt != self._attempt:
                return False
            self._requests[request.worker_rank] = request
            if len(self._requests) < self._expected or self._worlds:
                return False
            self._form()
            self._changed.notify_all()
            return True

    def world_of(self, attempt: int, worker_rank: int, *, wait_s: float) -> World | None:
        """The worker's place, or None if no world was formed within `wait_s`."""
        with self._changed:
            self._changed.wait_for(lambda: worker_rank in self._worlds and attempt == self._attempt, wait_s)
            return self._worlds.get(worker_rank) if attempt == self._attempt else None

    @property
    def workers(self) -> list[JoinRequest]:
        """Who has joined the current attempt, by worker index."""
        with self._changed:
            return [self._requests[index] for index in sorted(self._requests)]

    def host_of(self, rank: int) -> str:
        """Host of a rank of the present world, or "" where there is no such rank."""
        member = self.members().get(rank)
        return "" if member is None else member.hostname

    def members(self) -> dict[int, JoinRequest]:
        """Who is in the world, by rank; before it is formed, who has joined, by worker index."""
        with self._changed:
            ranks = {index: world.rank for index, world in self._worlds.items()}
            return {ranks.get(index, index): request for index, request in sorted(self._requests.items())}

    def _form(self) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore(
            self.host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=self.timeout_s)
        )
        for worker_rank, rank in assign_ranks(list(self._requests.values())).items():
            self._worlds[worker_rank] = World(
                generation=self._generation,
                rank=rank,
                world_size=self._expected,
                store_host=self.host,
                store_port=int(self._store.port),
            )
