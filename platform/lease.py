"""Who owns a run: one small object, changed only by conditional puts, renewed while its owner lives.

Two starts of one run name race for it, and exactly one wins. An owner that is gone for certain (its
process is dead on this very machine) is replaced at once. One that merely stopped renewing is replaced
only when asked, because a clock or a network may be at fault; should it still live, its next renewal
fails with `FencedError`.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeGuard

from stormsail.platform import exact_json
from stormsail.platform.errors import (
    FencedError,
    InternalError,
    ObjectMissingError,
    PreconditionFailedError,
    RunExistsError,
    StorageError,
    StorageUnavailableError,
)
from stormsail.platform.sealed_line import seal_line, unseal_line
from stormsail.platform.storage.store import ObjectInfo, ObjectStore

KEY = "lease.json"
TTL_S = 60.0

_TRIES = 8  # another process won each of the earlier ones


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A process that owns, or wants to own, a run.

    Attributes:
        id: Who it is; the same id may take its own lease again from another process.
        host: Host name.
        pid: Process id.
        boot_id: The start of the machine (and the process numbering) that `pid` belongs to, or "" if unknown.
    """

    id: str
    host: str
    pid: int
    boot_id: str

    @classmethod
    def here(cls, owner_id: str) -> LeaseOwner:
        """This process."""
        return cls(id=owner_id, host=socket.gethostname(), pid=os.getpid(), boot_id=_boot_id())


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the lease object says.

    Attributes:
        owner: Who holds it, or held it last.
        claim: Differs for each acquisition.
        started_s: When it was acquired, in seconds since the epoch by its owner's clock.
        renewed_s: When it was last renewed.
        ttl_s: How long it is valid without renewal.
        generation: The run's generation at the last renewal, or None.
        released: Whether its owner gave it back.
    """

    owner: LeaseOwner
    claim: str
    started_s: float
    renewed_s: float
    ttl_s: float
    generation: int | None = None
    released: bool = False

    def expired(self, now: float) -> bool:
        """Whether it was not renewed in time."""
        return now > self.renewed_s + self.ttl_s

    def is_ahead(self, now: float) -> bool:
        """Whether it was renewed by a clock that is far ahead of this one; it would take as long to expire."""
        return self.renewed_s > now + self.ttl_s


class RunLease:
    """A lease that was acquired; used by one thread at a time. Made by `acquire`."""

    def __init__(self, store: ObjectStore, record: LeaseRecord, info: ObjectInfo) -> None:
        self._store = store
        self._record = record
        self._info = info

    @property
    def record(self) -> LeaseRecord:
        """What the lease says now."""
        return self._record

    @property
    def stored_s(self) -> float:
        """When it was last written, in seconds since the epoch by the store's clock, which dates all other objects too."""
        return self._info.modified_s

    @classmethod
    def acquire(
        cls,
        store: ObjectStore,
        owner: LeaseOwner,
        *,
        now: float,
        take_over: bool = False,
        ttl_s: float = TTL_S,
        run: str = "",
        is_alive: Callable[[int], bool] | None = None,
    ) -> RunLease:
        """Become the owner of the run that lives in `store`.

        Args:
            store: The run's store.
            owner: Who asks.
            now: Seconds since the epoch.
            take_over: Also replace an owner whose lease has run out, or was renewed in a far future by a clock that
                had jumped, though it is not known to be dead.
            ttl_s: How long the lease is to be valid without renewal.
            run: The run's name, for messages ("": the last part of the store's URL).
            is_alive: Whether a process of this machine lives (default: asks the system).

        Raises:
            RunExistsError: Somebody else owns it.
        """
        name = run or store.url.rstrip("/").rpartition("/")[2]
        wanted = LeaseRecord(owner, claim=secrets.token_hex(8), started_s=now, renewed_s=now, ttl_s=ttl_s)
        body = _encode(wanted)
        for _ in range(_TRIES):
            held = _read(store)
            try:
                if held is None:
                    return cls(store, wanted, store.put(KEY, body, if_none_match=True))
                record, info = held
                if not _dead_for_certain(record.owner, owner, is_alive or _process_lives):
                    _check_free(record, owner, now, _Named(name, f"{store.url}/{KEY}"), take_over=take_over)
                return cls(store, wanted, store.put(KEY, body, if_match=info.etag))
            except PreconditionFailedError:
                continue  # somebody was faster: look again who
        todo = "Try again; other processes keep starting this run."
        raise RunExistsError(f"The lease changed hands {_TRIES} times meanwhile", where=f"{store.url}/{KEY}", todo=todo)

    def renew(self, now: float, *, generation: int | None = None) -> None:
        """Say that the owner lives; a clock that was put right corrects what a wrong one said.

        Args:
            now: Seconds since the epoch.
            generation: The run's generation; None leaves what was said before.

        Raises:
            FencedError: The lease is somebody else's now: stop writing at once.
            StorageUnavailableError: The store cannot be reached; call again. It is lost only when another takes it.
        """
        if self._record.released:
            raise InternalError("A lease that was given back cannot be renewed", where=f"{self._store.url}/{KEY}")
        kept = self._record.generation if generation is None else generation
        self._replace(replace(self._record, renewed_s=now, generation=kept))

    def release(self) -> None:
        """Give the lease back; may be called again.

        Raises:
            FencedError: It is somebody else's already.
        """
        if not self._record.released:
            self._replace(replace(self._record, released=True))

    def _replace(self, record: LeaseRecord) -> None:
        body = _encode(record)
        for _ in range(_TRIES):
            try:
                info = self._store.put(KEY, body, if_match=self._info.etag)
            except PreconditionFailedError as error:
                # An earlier try, or this one, may have arrived though its answer did not.
                found, info = self._held_by_us(record, error)
                self._info = info
                if found != record:
                    continue
            self._record = record
            self._info = info
            return
        what = f"The run's lease could not be written in {_TRIES} tries, though nobody else has it"
        raise StorageUnavailableError(what, where=f"{self._store.url}/{KEY}")

    def _held_by_us(self, wanted: LeaseRecord, cause: PreconditionFailedError) -> tuple[LeaseRecord, ObjectInfo]:
        held = _read(self._store)
        where = f"{self._store.url}/{KEY}"
        if held is None:
            raise FencedError("The run's lease was deleted", where=where, todo="Start the run again.") from cause
        record, _ = held
        if record.claim != self._record.claim or (record.released and record != wanted):
            what = f"The run was taken over by {_name(record)} at {_clock(record.started_s)}"
            raise FencedError(what, where=where, todo="This process must stop; the other one goes on.") from cause
        return held


def read_lease(store: ObjectStore) -> LeaseRecord | None:
    """What the lease of a run says, or None if it never had one."""
    held = _read(store)
    return None if held is None else held[0]


@dataclass(frozen=True, slots=True)
class _Named:
    run: str
    where: str


def _check_free(record: LeaseRecord, owner: LeaseOwner, now: float, named: _Named, *, take_over: bool) -> None:
    """Raise `RunExistsError` if the lease of an owner who may live may not be taken."""
    if record.released or record.owner.id == owner.id:
        return
    run = named.run
    since = f"{_name(record)} since {_clock(record.started_s)}"
    silent = f"{max(now - record.renewed_s, 0.0):.0f} s ago"
    if record.is_ahead(now) and take_over:
        return
    if record.is_ahead(now):
        what = f"Run {run!r} is owned by {since}, whose clock was {record.renewed_s - now:.0f} s ahead of this one"
        todo = "Set the clocks right; or make sure that it is gone, then take the run over with `--take-over`."
        raise RunExistsError(what, where=named.where, todo=todo)
    if not record.expired(now):
        what = f"Run {run!r} is owned by {since}, last heard of {silent}"
        todo = f"Follow it with `stormsail attach {run}`, end it with `stormsail stop {run}`, or choose another name."
        raise RunExistsError(what, where=named.where, todo=todo)
    if not take_over:
        what = f"Run {run!r} was owned by {since}, which was last heard of {silent} and may be dead or cut off"
        todo = "Make sure that it is gone, then take the run over with `--take-over`."
        raise RunExistsError(what, where=named.where, todo=todo)


def live_owner(store: ObjectStore, *, now: float) -> LeaseRecord | None:
    """The lease of an owner that must be taken for alive, or None: given back, run out, or its process is dead here.

    Args:
        store: The run's store.
        now: Seconds since the epoch.
    """
    record = read_lease(store)
    if record is None or record.released or record.expired(now):
        return None
    return None if _dead_for_certain(record.owner, LeaseOwner.here(""), _process_lives) else record


def _dead_for_certain(held: LeaseOwner, asking: LeaseOwner, is_alive: Callable[[int], bool]) -> bool:
    same_machine = held.host == asking.host and held.boot_id == asking.boot_id != ""
    return same_machine and not is_alive(held.pid)


def _read(store: ObjectStore) -> tuple[LeaseRecord, ObjectInfo] | None:
    try:
        body, info = store.get_with_info(KEY)
    except ObjectMissingError:
        return None
    return _decode(body, f"{store.url}/{KEY}"), info


def _encode(record: LeaseRecord) -> bytes:
    return seal_line(exact_json.dumps(asdict(record)))


def _decode(body: bytes, where: str) -> LeaseRecord:
    damaged = StorageError(
        "The run's lease cannot be understood",
        where=where,
        todo="If nobody runs this run, delete the object and start again.",
    )
    try:
        held = exact_json.loads(unseal_line(body))  # where a bit was turned, the next renewal writes it anew
    except ValueError as error:
        raise damaged from error
    if not _is_object(held) or not _is_object(owner := held.get("owner")):
        raise damaged
    try:
        fields = {name: held[name] for name in LeaseRecord.__slots__ if name in held and name != "owner"}
        return _checked(LeaseRecord(owner=LeaseOwner(**owner), **fields))  # type: ignore[arg-type] # checked next
    except TypeError as error:
        raise damaged from error


def _checked(record: LeaseRecord) -> LeaseRecord:
    texts = (record.owner.id, record.owner.host, record.owner.boot_id, record.claim)
    numbers = (record.owner.pid, record.started_s, record.renewed_s, record.ttl_s)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(num, int | float) for num in numbers):
        raise TypeError("a field of the lease has another type")
    return record


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _name(record: LeaseRecord) -> str:
    return f"{record.owner.host} (process {record.owner.pid})"


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _boot_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # Containers of one machine share the boot and may share the host name, but number their processes apart.
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it lives, as another user's
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state not in ("Z", "X")  # a zombie answers signals, but runs no more
