"""How a run ends: its last state and its exit code are noted, and its phase is the last one."""

from __future__ import annotations

import contextlib

from stormsail.platform.errors import FencedError, StorageError, StorageUnavailableError, StormsailError
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunEvent


def finish(ledger: Ledger, step: int, *, applied: int, where: str) -> None:
    """All steps are done.

    Args:
        ledger: What is known of the run.
        step: Steps that are done.
        applied: Optimizer updates among them.
        where: The run's store, for the message.

    Raises:
        StorageUnavailableError: The state of this step was not saved.
    """
    digest = _digest_at(ledger, step)
    if digest is None:
        ledger.note("run.unsaved", step=step, applied=applied)
        raise StorageUnavailableError(
            f"all steps are done, but the state of step {step} could not be saved",
            where=where,
            todo="the same command goes on from the newest checkpoint and saves it",
        )
    ledger.note("run.finished", step=step, applied=applied, digest=digest, exit_code=0)
    ledger.move(RunEvent.FINISHED)


def stop(ledger: Ledger, step: int) -> None:
    """A person has asked for the end, and it is reached before this step."""
    saved = ledger.candidates()
    ledger.note(
        "run.stopped",
        step=step,
        saved_step=saved[-1].ref.step if saved else 0,
        reason=ledger.stop_reason,
        digest=_digest_at(ledger, step),
        exit_code=5,
        durable=True,
    )
    with ledger.lock:
        if not ledger.phase.terminal:  # asking twice changes nothing, and the request may not be noted yet
            ledger.move(RunEvent.STOP_ASKED)
        if not ledger.phase.terminal:
            ledger.move(RunEvent.ENDED)


def give_up(ledger: Ledger, error: StormsailError) -> None:
    """The supervisor itself cannot go on: say why, keep everything."""
    ledger.error = error
    if isinstance(error, FencedError) or ledger.record.outcome:
        return
    with contextlib.suppress(StorageError):  # whoever follows the run hears of `error`; the journal cannot
        ledger.note("run.failed", error=str(error), exit_code=error.exit_code)
    if not ledger.phase.terminal:
        ledger.move(RunEvent.GAVE_UP)


def _digest_at(ledger: Ledger, step: int) -> str | None:
    """The digest of the newest checkpoint, if it is the one of this step."""
    newest = max(ledger.candidates(), key=lambda item: (item.ref.step, item.ref.generation), default=None)
    if newest is None or newest.ref.step != step:
        return None
    return next(commit.digest for commit in ledger.record.commits if commit.ref == newest.ref)
