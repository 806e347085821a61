"""The error families, by who must act, each with the exit code that scripts see.

A message says what happened, to what, and what to do about it. Errors keep their parts as
fields and survive pickling, because they travel between Ray processes.
"""

from __future__ import annotations

from typing import ClassVar, Self


class StormsailError(Exception):
    """Base of every error that Stormsail raises on purpose.

    Args:
        what: What went wrong, as a full sentence.
        where: The file, key, object, host or rank that it happened to ("" if nowhere in particular).
        todo: What the reader can do about it ("" if nothing sensible can be said).
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.todo = todo

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.todo:
            parts.append(self.todo)
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.todo), self.__dict__)

    @classmethod
    def rebuild(cls, what: str, where: str, todo: str) -> Self:
        """Make the error again on the other side of a pickle."""
        error = cls.__new__(cls)
        StormsailError.__init__(error, what, where=where, todo=todo)
        return error


def _rebuild(cls: type[StormsailError], what: str, where: str, todo: str) -> StormsailError:
    return cls.rebuild(what, where, todo)


class InternalError(StormsailError):
    """A bug of ours."""

    exit_code = 1


class ConfigError(StormsailError):
    """The configuration or the command line is wrong; the user changes it."""

    exit_code = 2


class RunExistsError(ConfigError):
    """The run name is taken: by a live owner, or by a finished run."""


class NoSuchRunError(ConfigError):
    """There is nothing under this run name."""


class CheckFailedError(StormsailError):
    """A check (verify, doctor, preflight, drill) did its work and the answer is no."""

    exit_code = 3


class LadderExhaustedError(StormsailError):
    """Every repair was tried; a person must look."""

    exit_code = 4


class StoppedError(StormsailError):
    """The run was stopped on request."""

    exit_code = 5


class UserCodeError(StormsailError):
    """The user's own code (model, data, optimizer factory or forward) raised.

    Attributes:
        details: The user's traceback as text, first cause first.
    """

    exit_code = 6

    def __init__(self, what: str, *, where: str = "", todo: str = "", details: str = "") -> None:
        super().__init__(what, where=where, todo=todo)
        self.details = details


class TryLaterError(StormsailError):
    """Nothing is wrong with the request, but something it needs is not there now."""

    exit_code = 75


class StorageError(TryLaterError):
    """The object store failed; the parts name the operation and the key."""


class StorageUnavailableError(StorageError):
    """The store cannot be reached, or did not answer within its limit."""


class StorageDeniedError(StorageError):
    """The store refused: credentials, permissions, a missing bucket, or a read-only place."""

    exit_code = 2


class StorageFullError(StorageError):
    """No space left where the bytes should go."""


class ObjectMissingError(StorageError):
    """There is no object under this key."""


class PreconditionFailedError(StorageError):
    """A conditional put lost: the object exists already, or is not the one that was expected."""


class FencedError(StorageError):
    """Somebody with a newer claim writes here; this process must stop writing at once."""

    exit_code = 75


class CheckpointError(StormsailError):
    """No usable checkpoint, or one that fails verification.

    Attributes:
        objects: Keys of the objects that are missing, damaged or not ours.
    """

    exit_code = 3

    def __init__(self, what: str, *, where: str = "", todo: str = "", objects: tuple[str, ...] = ()) -> None:
        super().__init__(what, where=where, todo=todo)
        self.objects = objects


class StateMismatchError(ConfigError):
    """A checkpoint is whole, but it is not one of this model, optimizer or version; nothing is wrong with it."""


class WorkerFaultError(StormsailError):
    """A worker process, or the group it belonged to, failed; the ladder decides what follows."""

    exit_code = 75


class ClusterError(TryLaterError):
    """The Ray cluster lacks something (resources, the package, a node); the operator acts."""


_BY_EXIT_CODE: dict[int, type[StormsailError]] = {
    kind.exit_code: kind
    for kind in (InternalError, ConfigError, CheckFailedError, LadderExhaustedError, StoppedError, TryLaterError)
}


def kind_of(exit_code: int) -> type[StormsailError]:
    """The plain error family that ends with this exit code; `InternalError` for a code that none has."""
    return _BY_EXIT_CODE.get(exit_code, InternalError)
