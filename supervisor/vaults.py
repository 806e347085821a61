"""The vaults of a run: one detached actor on each node, made before an attempt, looked after, and ended with the run."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import StormsailError
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectInfo
from stormsail.platform.vault.folder import VaultFolder, shared_memory_bytes, sweep
from stormsail.platform.vault.keeper import VaultKeeper, VaultState
from stormsail.platform.vault.log_copies import LogCopies
from stormsail.workers import quiet
from stormsail.workers.vault_link import NAMESPACE, vault_name

Tell = Callable[..., object]

_GIB = 1 << 30
_SHARE = 0.5  # of the free shared memory, where no budget is configured
_STALE_S = 600.0
_CALL_S = 60.0
_LOOK_S = 5.0
_CHUNK_S = 60.0


def budget_of(vault_gib: float | None, free_bytes: int) -> int:
    """The budget of one node's vault, in bytes: as configured, or half of what is free."""
    return int(free_bytes * _SHARE) if vault_gib is None else int(vault_gib * _GIB)


class VaultActor:
    """One run's vault on one node, as an actor. Every method is called by Ray, in one of several threads."""

    def __init__(self, run_url: str, node: str, vault_gib: float | None, log_folder: str) -> None:
        quiet.redirect_output(Path(log_folder) / f"vault-{node[:12]}.log")
        quiet.quiet_process(full_logs=True)
        self._node = node
        home = Home.here()
        sweep(home, now_s=time.time(), grace_s=_STALE_S)
        folder = VaultFolder.of(home, run_url, node)
        # What a vault before this one had taken is free for this one.
        free = shared_memory_bytes() + folder.used_bytes()
        self._keeper = VaultKeeper(folder, budget_of(vault_gib, free))
        self._log = LogCopies(folder)
        self._buddy: Any = None
        self._buddy_name: str | None = None
        self._uncopied = ""
        self._outbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._copy_on, name="stormsail-vault-copies", daemon=True).start()

    def state(self) -> VaultState:
        """See `VaultKeeper.state`."""
        return replace(self._keeper.state(), uncopied=self._uncopied)

    def set_buddy(self, name: str | None) -> None:
        """Which vault gets copies of this node's images and log, by the name of its actor."""
        import ray

        self._buddy = ray.get_actor(name, namespace=NAMESPACE) if name is not None else None
        self._keeper.expect_copies(expected=name is not None)
        if name is not None and name != self._buddy_name:
            for key in self._log.held():  # a new buddy has none of it, and a new process does not know what it has
                self.logged(key)
        self._buddy_name = name

    def slots(self, rank: int, size_bytes: int, wanted: int, ranks_here: int) -> list[str]:
        """See `VaultKeeper.slots`."""
        return self._keeper.slots(rank, size_bytes, wanted, ranks_here)

    def sealed(self, name: str) -> None:
        """A rank of this node has sealed an image."""
        if self._buddy is not None:
            self._outbox.put(partial(self._copy, name))

    def logged(self, key: str) -> None:
        """A rank of this node has logged a step."""
        if self._buddy is not None:
            self._outbox.put(partial(self._copy_entry, key))

    def log_spared(self, step: int) -> None:
        """A rank of this node needs the log of earlier steps no longer."""
        if self._buddy is not None:
            self._outbox.put(partial(self._spare, step))

    def images(self, ref: CheckpointRef) -> list[tuple[str, bytes]]:
        """See `VaultKeeper.images`."""
        return self._keeper.images(ref)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See `VaultKeeper.read`."""
        return self._keeper.read(name, start, stop)

    def discard(self, name: str) -> None:
        """See `VaultKeeper.discard`."""
        self._keeper.discard(name)

    def begin_copy(self, node: str, rank: int, size_bytes: int) -> str:
        """See `VaultKeeper.begin_copy`."""
        return self._keeper.begin_copy(node, rank, size_bytes)

    def write_copy(self, name: str, offset: int, data: bytes) -> None:
        """See `VaultKeeper.write_copy`."""
        self._keeper.write_copy(name, offset, data)

    def end_copy(self, name: str, record: bytes) -> None:
        """See `VaultKeeper.end_copy`."""
        self._keeper.end_copy(name, record)

    def log_infos(self, prefix: str, start_after: str | None) -> list[ObjectInfo]:
        """What this node holds of the gradient log."""
        return list(self._log.infos(prefix, start_after))

    def log_entry(self, key: str) -> bytes | None:
        """An entry of the gradient log that this node holds, or None."""
        return self._log.entry(key)

    def receive_log(self, key: str, size_bytes: int, offset: int, data: bytes) -> bool:
        """See `LogCopies.receive`."""
        return self._log.receive(key, size_bytes, offset, data)

    def spare_log(self, step: int) -> None:
        """See `LogCopies.spare`."""
        self._log.spare(step)

    def end(self) -> None:
        """See `VaultKeeper.end`."""
        self._keeper.end()

    def _copy_on(self) -> None:
        while True:
            work = self._outbox.get()
            try:
                work()
                self._uncopied = ""
            except StormsailError as error:
                self._uncopied = str(error).replace("\n", "; ")
                print(f"not copied: {error}", flush=True)  # noqa: T201 - the actor's log
            except Exception as error:  # noqa: BLE001 - the thread's entry: one copy less, the next one may succeed
                self._uncopied = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
                traceback.print_exception(error)

    def _copy(self, name: str) -> None:
        import ray

        buddy = self._buddy
        if buddy is None:
            return
        self._keeper.send(
            name,
            lambda rank, size: str(ray.get(buddy.begin_copy.remote(self._node, rank, size), timeout=_CHUNK_S)),
            lambda there, offset, data: ray.get(buddy.write_copy.remote(there, offset, data), timeout=_CHUNK_S),
            lambda there, record: ray.get(buddy.end_copy.remote(there, record), timeout=_CHUNK_S),
        )

    def _copy_entry(self, key: str) -> None:
        import ray

        buddy = self._buddy
        if buddy is not None:
            self._log.send(key, lambda *part: bool(ray.get(buddy.receive_log.remote(*part), timeout=_CHUNK_S)))

    def _spare(self, step: int) -> None:
        import ray

        buddy = self._buddy
        if buddy is not None:
            ray.get(buddy.spare_log.remote(step), timeout=_CHUNK_S)


@dataclass(slots=True)
class _Known:
    """A vault as it was seen last."""

    node: str
    address: str
    name: str
    handle: Any
    buddy: str | None = None
    buddy_address: str = ""
    born_s: float = 0.0
    asked: Any = None
    lost: bool = False
    uncopied: bool = False


@dataclass(slots=True)
class Vaults:
    """All vaults of a run, from the supervisor's side.

    Attributes:
        config: The run.
        actor: Name of the run's supervisor, from which those of the vaults follow.
        run_url: Address of the run's store.
        log_folder: Where the actors write.
        env: Environment of the actors' processes.
    """

    config: RunConfig
    actor: str
    run_url: str
    log_folder: str
    env: dict[str, str]
    _known: dict[str, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _looked_s: float = 0.0

    def start(self) -> list[_Known]:
        """Have a vault start on every node that is alive, without waiting for it; gives all, in the order of buddies."""
        if self.config.checkpoint.vault_gib == 0:
            return []
        alive = _alive()
        with self._lock:
            self._known = {node: known for node, known in self._known.items() if node in alive and not known.lost}
            for node in sorted(set(alive) - set(self._known)):
                name = vault_name(self.actor, node)
                self._known[node] = _Known(node, alive[node], name, self._create(name, node))
            return sorted(self._known.values(), key=lambda known: known.node)

    def open(self) -> None:
        """Have a vault on every node that is alive, each knowing its buddy; does not wait: `look` tells of them."""
        order = self.start()
        for index, known in enumerate(order):
            buddy = order[(index + 1) % len(order)] if len(order) > 1 else None
            known.uncopied = known.uncopied and buddy is not None and buddy.name == known.buddy
            known.buddy = buddy.name if buddy is not None else None
            known.buddy_address = buddy.address if buddy is not None else ""
            known.handle.set_buddy.remote(known.buddy)

    def _create(self, name: str, node: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            ray.remote(VaultActor)
            .options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=16,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                runtime_env=own_environment(self.env),
            )
            .remote(self.run_url, node, self.config.checkpoint.vault_gib, self.log_folder)
        )

    def look(self, tell: Tell) -> None:
        """Note vaults that are there, were started again, or have died; never waits. To be called every second or so."""
        now = time.monotonic()
        due = now - self._looked_s >= _LOOK_S
        if due:
            self._looked_s = now
        with self._lock:
            asking = [known for known in self._known.values() if not known.lost]
        for known in asking:
            if known.asked is not None:
                self._hear(known, tell)
            elif due or not known.born_s:
                known.asked = known.handle.state.remote()

    def _hear(self, known: _Known, tell: Tell) -> None:
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        if not ray.wait([known.asked], timeout=0)[0]:
            return
        answer, known.asked = known.asked, None
        try:
            state: VaultState = ray.get(answer)
        except ActorUnavailableError:
            return  # Ray starts it again: a later look tells
        except RayError as error:
            known.lost = True
            why = next(iter(str(error).strip().splitlines()), "")
            tell("vault.lost", node=known.address, why=f"{type(error).__name__}: {why}")
            return
        if state.uncopied and not known.uncopied:
            known.uncopied = True  # told once, or a buddy that is full would be told of at each step
            tell("vault.uncopied", node=known.address, buddy=known.buddy_address, why=state.uncopied)
        if state.born_s == known.born_s:
            return
        if known.born_s:
            known.handle.set_buddy.remote(known.buddy)  # the new process does not know it
            tell("vault.restarted", node=known.address, images=state.images)
        else:
            copies = f"copied to {known.buddy_address}" if known.buddy else "no buddy: the cluster has one node"
            tell("vault.opened", node=known.address, budget_bytes=state.budget_bytes, buddy=copies)
        known.born_s = state.born_s

    def end(self) -> None:
        """The run is over: every vault unlinks its shared memory and goes."""
        import ray
        from ray.exceptions import RayError

        with self._lock:
            self._known = {}
        for node, address in _alive().items():
            try:  # by name: a supervisor before this one may have made it
                handle = ray.get_actor(vault_name(self.actor, node), namespace=NAMESPACE)
                ray.get(handle.end.remote(), timeout=_CALL_S)
                ray.kill(handle, no_restart=True)
            except ValueError:
                continue  # there is none
            except RayError as error:
                # Its node is gone, and the memory with it; or it hangs, and the next vault there sweeps it.
                print(f"vault on {address}: {type(error).__name__}", flush=True)  # noqa: T201 - the actor's log


def _alive() -> dict[str, str]:
    """Addresses of the nodes that are alive, by id."""
    import ray

    return {str(node["NodeID"]): str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}


def own_environment(env: dict[str, str]) -> dict[str, Any] | None:
    """Ray's runtime environment for these variables; none for none, because a process that has one imports Ray twice."""
    return {"env_vars": env} if env else None
