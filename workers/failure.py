"""Why a worker dies, as its supervisor hears it: whose fault it is, in one line and in full."""

from __future__ import annotations

import time
import traceback

from stormsail.platform.errors import StormsailError, UserCodeError, WorkerFaultError
from stormsail.platform.messages import WorkerFailure


def failure_of(error: BaseException, *, attempt: int, rank: int, step: int) -> WorkerFailure:
    """What an exception that ends a worker means.

    Args:
        error: As it was caught.
        attempt: Number of the attempt.
        rank: The worker's rank, as Ray Train counts.
        step: Step that it was at; -1 before the first.
    """
    return WorkerFailure(
        attempt=attempt,
        rank=rank,
        step=step,
        origin=_origin(error),
        error=_headline(error),
        details=getattr(error, "details", "") or "".join(traceback.format_exception(error)),
        exit_code=error.exit_code if isinstance(error, StormsailError) else 1,
        time_s=time.time(),
    )


def _headline(error: BaseException) -> str:
    return str(error) if isinstance(error, StormsailError) else f"{type(error).__name__}: {error}"


def _origin(error: BaseException) -> str:
    """Whose fault it is: the user's code, ours, or a peer that was lost first."""
    from stormsail.workers.inject import DrillError
    from stormsail.workers.usercode import Blame, blame

    if isinstance(error, DrillError | UserCodeError):
        return "user"
    if isinstance(error, StormsailError):
        # Its first cause may lie in a library, such as that of the object store, which is no user's code either.
        return "peer" if isinstance(error, WorkerFaultError) else "ours"
    return {Blame.USER: "user", Blame.OURS: "ours", Blame.PEERS: "peer"}[blame(error)]
