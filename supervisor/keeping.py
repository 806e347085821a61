"""Checkpoints from the run's side: what was committed or missed, what is known good by now, and what may go."""

from __future__ import annotations

from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.lines import live_refs
from stormsail.platform.checkpoint.retention import retain
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckpointError, StorageError
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.candidates import promote
from stormsail.supervisor.committer import Committed
from stormsail.supervisor.ledger import Ledger


class Keeper:
    """Notes what becomes of checkpoints, and deletes those that nobody may need.

    Args:
        config: The run.
        ledger: Where it is noted.
        store: The run's store.
    """

    def __init__(self, config: RunConfig, ledger: Ledger, store: ObjectStore) -> None:
        self._config = config
        self._ledger = ledger
        self._store = store
        self._missed_in_row = 0

    def committed(self, done: Committed) -> None:
        """A checkpoint was published; called from the committer's thread."""
        manifest = done.manifest
        self._missed_in_row = 0
        self._ledger.note(
            "checkpoint.committed",
            step=manifest.step,
            generation=manifest.generation,
            bytes=manifest.stored_bytes,
            took_s=done.took_s,
            digest=manifest.root,
            finite=manifest.nonfinite == 0,
        )
        self._retain()

    def missed(self, generation: int, step: int, why: str) -> None:
        """A save was abandoned; training goes on."""
        self._missed_in_row += 1
        self._ledger.note("checkpoint.missed", step=step, generation=generation, why=why)
        if self._missed_in_row == self._config.checkpoint.max_missed:
            self._ledger.note("checkpoint.alert", step=step, missed=self._missed_in_row, why=why)

    def promote(self, healthy_step: int) -> None:
        """Mark what is known good now that this step was healthy."""
        ready = promote(
            self._ledger.candidates(),
            healthy_step=healthy_step,
            episode_open=self._ledger.record.ladder.numeric is not None,
            good_after_steps=self._config.checkpoint.good_after_steps,
        )
        for ref in ready:
            self._ledger.note("checkpoint.good", step=ref.step, generation=ref.generation)

    def sweep(self, now_s: float) -> None:
        """Remove what dead saves of earlier supervisors left behind."""
        removed = collect_litter(self._store, now_s=now_s, grace_s=2 * self._config.checkpoint.deadline_s)
        if removed.deleted:
            self._ledger.note("checkpoint.swept", objects=len(removed.deleted), bytes=removed.freed_bytes)

    def _retain(self) -> None:
        try:
            self._delete_spare()
        except (StorageError, CheckpointError) as error:
            # Deleting can wait; the next commit tries again.
            self._ledger.note("checkpoint.retention_failed", why=str(error).replace("\n", "; "))

    def _delete_spare(self) -> None:
        record = self._ledger.record
        commits = scan_commits(self._store).commits
        live = live_refs(record.generations, commits)
        plan = retain(
            commits,
            good=record.good,
            live=live,
            head_step=max((ref.step for ref in live), default=0),
            keep_last=self._config.checkpoint.keep_last,
            ladder_min_steps=max(self._config.rollback.min_steps, self._config.fp32.window_steps),
        )
        if plan.delete:
            # Noted first: the ladder must not choose what is about to go.
            self._ledger.note("checkpoint.deleted", refs=[[ref.generation, ref.step] for ref in plan.delete])
            collect(self._store, plan)
