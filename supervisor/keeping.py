"""Checkpoints from the run's side: what was committed or missed, what is known good by now, and what may go."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from stormsail.platform.checkpoint.collector import collect, collect_litter
from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.evaluated import evaluated_commits
from stormsail.platform.checkpoint.folding import drop_original, folded, freed
from stormsail.platform.checkpoint.keys import LOG
from stormsail.platform.checkpoint.leases import LeaseWatch
from stormsail.platform.checkpoint.lines import live_refs
from stormsail.platform.checkpoint.log_line import spare
from stormsail.platform.checkpoint.manifest import Commit
from stormsail.platform.checkpoint.pins import pins
from stormsail.platform.checkpoint.retention import Keep, RetentionPlan, retain, to_fold
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckpointError, StorageError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor.candidates import promote
from stormsail.supervisor.committer import Committed
from stormsail.supervisor.compacting import Compactor
from stormsail.supervisor.ledger import Ledger

_log = logging.getLogger("stormsail.keeping")


def retention_plan(
    config: RunConfig,
    commits: Iterable[Commit],
    *,
    good: Collection[CheckpointRef],
    live: Collection[CheckpointRef],
    pinned: Collection[CheckpointRef] = (),
    held: Collection[CheckpointRef] = (),
    freed: Collection[CheckpointRef] = (),
) -> RetentionPlan:
    """What stays and what goes by the run's own settings.

    Args:
        config: The run.
        commits: All commits that there are.
        good: Those known good.
        live: Those on the live line.
        pinned: Kept until somebody unpins them.
        held: Kept for now.
        freed: Those that need their keyframe no longer.
    """
    commits = tuple(commits)
    section = config.checkpoint
    return retain(
        commits,
        good=good,
        live=live,
        head_step=max((ref.step for ref in live), default=0),
        rules=Keep(
            last=section.keep_last,
            every_steps=section.keep_every_steps,
            every_s=None if section.keep_every_hours is None else 3600.0 * section.keep_every_hours,
            best=section.keep_best,
            ladder_steps=max(config.rollback.min_steps, config.fp32.window_steps),
        ),
        pinned=pinned,
        held=held,
        times={commit.ref: commit.time_s for commit in commits},
        evaluated=evaluated_commits(commits),
        bases={commit.ref: commit.base for commit in commits if commit.base is not None and commit.ref not in freed},
    )


class Keeper:
    """Notes what becomes of checkpoints, and deletes those that nobody may need.

    Args:
        config: The run.
        ledger: Where it is noted.
        store: The run's store.
        clock: Monotonic seconds.
        compactor: Folds what stays for long; None folds nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        store: ObjectStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        compactor: Compactor | None = None,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._missed: set[CheckpointRef] = set()
        self._given_up: dict[CheckpointRef, float] = {}
        self._compactor = compactor
        self._not_folded: set[CheckpointRef] = set()
        self._dropped: set[CheckpointRef] = set()
        self._folded_s: dict[CheckpointRef, float] = {}
        self._leases = LeaseWatch(clock=clock)

    def committed(self, done: Committed) -> None:
        """A checkpoint was published; called from the committer's thread."""
        manifest = done.manifest
        self._missed = set()
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
        self._clear_given_up()

    def missed(self, generation: int, step: int, why: str, /, *, finite: bool = True) -> None:
        """A save was abandoned; training goes on."""
        self._ledger.note("checkpoint.missed", step=step, generation=generation, why=why, finite=finite)
        ref = CheckpointRef(generation, step)
        self._given_up = {ref: self._clock()} | self._given_up
        if ref in self._missed:
            return  # each rank says so, and the committer too
        self._missed = self._missed | {ref}
        if len(self._missed) == self._config.checkpoint.max_missed:
            self._ledger.note("checkpoint.alert", step=step, missed=len(self._missed), why=why)

    def promote(self, healthy_step: int) -> None:
        """Mark what is known good now that this step was healthy."""
        ready = promote(
            self._ledger.candidates(),
            healthy_step=healthy_step,
            episode_open=self._ledger.record.ladder.numeric is not None,
            good_after_steps=self._config.checkpoint.good_after_steps,
            last_unhealthy=self._ledger.last_unhealthy,
        )
        for ref in ready:
            self._ledger.note("checkpoint.good", step=ref.step, generation=ref.generation)

    def recheck(self) -> None:
        """Before a repair: a save that was given up may have been committed after all, if only the answer was lost."""
        if not self._given_up:
            return
        try:
            self.adopt()
        except (StorageError, CheckpointError) as error:
            _log.warning("checkpoint.not_rechecked why=%r", error.what)

    def adopt(self) -> None:
        """Note what is committed on the store and not in the journal: its supervisor died between the two."""
        record = self._ledger.record
        known = {commit.ref for commit in record.commits} | record.deleted
        generations = {generation.number for generation in record.generations}
        for commit in scan_commits(self._store).commits:
            if commit.ref not in known and commit.generation in generations:
                self._ledger.note(
                    "checkpoint.committed",
                    step=commit.step,
                    generation=commit.generation,
                    bytes=commit.stored_bytes,
                    took_s=0.0,
                    digest=commit.root,
                    finite=commit.finite,
                )

    def sweep(self, now_s: float) -> None:
        """Remove what dead saves of earlier supervisors left behind, half-written objects too."""
        grace_s = 2 * self._config.checkpoint.deadline_s
        held = self._leases.held(self._store)  # a fold takes longer than any save
        removed = collect_litter(self._store, now_s=now_s, grace_s=grace_s, spare=held)
        uploads = self._store.abort_stale_uploads("", older_than_s=grace_s)
        if removed.deleted or uploads:
            self._ledger.note(
                "checkpoint.swept", objects=len(removed.deleted), bytes=removed.freed_bytes, uploads=uploads
            )

    def _clear_given_up(self) -> None:
        """Remove what saves that were given up long enough ago have written, so that misses fill no store."""
        limit = self._clock() - 2 * self._config.checkpoint.deadline_s
        over = {ref for ref, since in self._given_up.items() if since < limit}
        if not over:
            return
        try:
            removed = collect_litter(self._store, now_s=math.inf, grace_s=0.0, only=over)
        except StorageError as error:
            _log.warning("checkpoint.not_cleared why=%r", error.what)  # after the next commit it is tried again
            return
        self._given_up = {ref: since for ref, since in self._given_up.items() if ref not in over}
        if removed.deleted:
            self._ledger.note("checkpoint.swept", objects=len(removed.deleted), bytes=removed.freed_bytes, uploads=0)

    def _retain(self) -> None:
        try:
            self._delete_spare()
        except (StorageError, CheckpointError) as error:
            # Deleting can wait; the next commit tries again.
            self._ledger.note("checkpoint.retention_failed", why=str(error).replace("\n", "; "))

    def _delete_spare(self) -> None:
        commits = scan_commits(self._store).commits
        folds = folded(self._store)
        without_base = freed(self._store, folds)
        kept_by_people, read_now = pins(self._store), self._leases.held(self._store)
        with self._ledger.lock:
            # Planned and noted in one go: the ladder must not choose what is about to go, nor this what was chosen.
            record = self._ledger.record
            live = live_refs(record.generations, commits)
            loading = {self._ledger.loading} if self._ledger.loading is not None else set()
            plan = retention_plan(
                self._config,
                commits,
                good=record.good - record.corrupt,
                live=live,
                pinned=kept_by_people,
                held=read_now | loading,
                freed=without_base,
            )
            if plan.delete:
                self._ledger.note("checkpoint.deleted", refs=[[ref.generation, ref.step] for ref in plan.delete])
        if plan.delete:
            # A supervisor that was replaced hears of it here: what it knows of the line is old, and it may not delete.
            self._ledger.secure()
            collect(self._store, self._without_newly_held(plan, commits, without_base))
        if self._config.checkpoint.gradient_log != "off":
            self._delete_spare_log()
        self._compact(plan, commits, folds)
        self._drop_originals(plan, commits, folds, read_now | loading)

    def _without_newly_held(
        self, plan: RetentionPlan, commits: Iterable[Commit], without_base: Collection[CheckpointRef]
    ) -> RetentionPlan:
        """Who pinned or began to read something meanwhile may not have seen the note of its deletion."""
        held = pins(self._store) | self._leases.held(self._store)
        needing = held - set(without_base)
        held |= {commit.base for commit in commits if commit.base is not None and commit.ref in needing}
        return replace(plan, delete=tuple(ref for ref in plan.delete if ref not in held))

    def _compact(self, plan: RetentionPlan, commits: Iterable[Commit], folds: Collection[CheckpointRef]) -> None:
        if self._compactor is None:
            return
        done = self._compactor.poll()
        if done is not None and done.why:
            self._not_folded.add(done.ref)
            self._ledger.note(
                "checkpoint.fold_failed", step=done.ref.step, generation=done.ref.generation, why=done.why
            )
        elif done is not None:
            self._ledger.note(
                "checkpoint.folded", step=done.ref.step, generation=done.ref.generation, bytes=done.stored_bytes
            )
        if not self._compactor.busy:
            bases = {commit.ref: commit.base for commit in commits if commit.base is not None}
            waiting = [ref for ref in to_fold(plan, bases, folds) if ref not in self._not_folded]
            if waiting:
                self._compactor.start(waiting[0])

    def _drop_originals(
        self,
        plan: RetentionPlan,
        commits: Iterable[Commit],
        folds: Collection[CheckpointRef],
        held: Collection[CheckpointRef],
    ) -> None:
        """The differences of what was folded a while ago: who began to read them before has finished by now.

        A while by this process's steady clock, from when it first saw the fold: no clock that jumps cuts it short.
        """
        now_s, grace_s = self._clock(), 2 * self._config.checkpoint.deadline_s
        self._folded_s = {ref: self._folded_s.get(ref, now_s) for ref in folds}
        for commit in commits:
            folded_s = self._folded_s.get(commit.ref)
            if folded_s is None or folded_s > now_s - grace_s or commit.ref in held or commit.ref not in plan.keep:
                continue
            if commit.ref not in self._dropped:
                self._drop_original(commit)
                self._dropped.add(commit.ref)

    def _drop_original(self, commit: Commit) -> None:
        try:
            drop_original(self._store, commit)
        except CheckpointError as error:  # no reason to leave the others as they are; its differences are read
            self._ledger.note(
                "checkpoint.fold_damaged",
                step=commit.step,
                generation=commit.generation,
                why=str(error).replace("\n", "; "),
            )

    def _delete_spare_log(self) -> None:
        """Keep the log from the newest checkpoint but one on: the newest one may turn out to be damaged.

        Workers do the same with what lies in the memory of their nodes.
        """
        record, steps = self._ledger.record, sorted(item.ref.step for item in self._ledger.candidates())
        oldest = steps[-2] if len(steps) > 1 else 0
        if self._ledger.loading is not None:  # a repair may replay what was logged since an older one
            oldest = min(oldest, self._ledger.loading.step)
        keys = spare(record.generations, [info.key for info in self._store.list(LOG)], from_step=oldest)
        if keys:
            self._ledger.secure()  # as above
        for key in keys:
            self._store.delete(key)
