"""From a fault to a directive: asks the pure ladder, journals its answer, begins the new generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from stormsail.platform.checkpoint.lines import Generation, claimed_numbers, create_generation
from stormsail.platform.checkpoint.log_line import Reach
from stormsail.platform.checkpoint.log_place import LogPlace
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckpointError, FencedError, LadderExhaustedError, StorageError
from stormsail.platform.messages import CheckpointRef, Directive, LogSpan, Tier
from stormsail.platform.storage.store import ObjectStore
from stormsail.supervisor import ladder
from stormsail.supervisor.faults import Described
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.log_extent import find_reach
from stormsail.supervisor.phases import RunEvent
from stormsail.supervisor.shadow import in_shadow

_EXPECTED_LOSSES = 5
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Question:
    """The last fault, and what the ladder remembered before it: asked again if the chosen checkpoint is damaged."""

    state: ladder.LadderState
    fault: ladder.Fault
    described: Described | None


class Decider:
    """Turns faults into directives; every method may be called from any thread.

    Args:
        config: The run.
        ledger: Where everything is known and noted.
        store: The run's store.
        owner: Who decides, for people.
        stop_step: Step to end at instead of `train.steps`, or None.
        on_generation: Told of each new generation, so that older ones are refused.
        changed: Whether the run goes on with another configuration than before: its losses may differ from then on.
        log_source: Where the gradient log is; None: in the run's store.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        store: ObjectStore,
        *,
        owner: str,
        stop_step: int | None,
        on_generation: Callable[[int], None],
        changed: bool = False,
        log_source: LogPlace | None = None,
    ) -> None:
        self.policy = ladder.LadderPolicy.from_config(config)
        self.directive: Directive | None = None
        self.caught_up_at: int | None = None
        self.first_step_of: int | None = None
        self._config = config
        self._ledger = ledger
        self._store = store
        self._log_source = log_source or store
        self._owner = owner
        self._stop_step = stop_step
        self._on_generation = on_generation
        self._changed = changed
        self._log_until: int | None = None
        self._claimed: int | None = None
        self._question: _Question | None = None
        self._pause = threading.Event()

    def start(self) -> Directive:
        """Begin, or go on from where a run without a fault stands; costs no tier."""
        with self._ledger.lock:
            if self._all_damaged():
                return self._refuse_to_begin_anew()
            decision = ladder.plan_start(
                self._ledger.record.ladder,
                self._ledger.candidates(),
                self.policy,
                self._ledger.record.lr_events,
                run_precision=self._config.train.precision,
            )
            replay = self._replay(decision)
            expected = self._expected(decision.restore, replay, None, 1 if self._changed else _EXPECTED_LOSSES)
            if self._changed:
                self._ledger.forget_losses()
            generation = self._new_generation(decision.restore, replay, decision.reason)
            self._ledger.set_ladder(decision.state)
            return self._directive(decision, generation, replay, expected, exact=not self._changed)

    def decide(self, fault: ladder.Fault, described: Described | None = None) -> Directive:
        """Answer a fault. A directive with a `stop_reason` ends the run, on request or because nothing is left to try."""
        with self._ledger.lock:
            if self._ledger.stop_reason:
                # A fault while stopping starts no repair: the newest committed state stands.
                return Directive(self._ledger.record.generation, stop_reason=self._ledger.stop_reason)
            self._question = _Question(self._ledger.record.ladder, fault, described)
            return self._carry_out(self._question)

    def would_decide(self, fault: ladder.Fault) -> ladder.Decision:
        """What the answer to a fault would be; nothing is journalled, and nothing is remembered."""
        with self._ledger.lock:
            return self._ask(self._ledger.record.ladder, fault, generation=self._ledger.record.generation + 1)

    def decide_again(self, *, log_until: int | None = None) -> Directive:
        """Answer the last fault (or the start) once more, with the checkpoints that are there now.

        Args:
            log_until: Compute again what the gradient log should have given from this step on; None: use all of it.
        """
        with self._ledger.lock:
            self._log_until = log_until
            try:
                return self.start() if self._question is None else self._carry_out(self._question)
            finally:
                self._log_until = None

    def _all_damaged(self) -> bool:
        """Whether there were checkpoints, and none of them can be loaded any more."""
        return bool(self._ledger.record.corrupt) and not self._ledger.candidates()

    def _refuse_to_begin_anew(self) -> Directive:
        """No repair throws away all that a run has done: where every checkpoint is damaged, a person decides."""
        reason = f"all checkpoints are damaged: {', '.join(sorted(map(_name, self._ledger.record.corrupt)))}"
        todo = "`stormsail checkpoints verify` names the objects; `stormsail train --fresh` begins anew"
        self._ledger.note("run.failed", error=f"{reason}; {todo}", exit_code=CheckpointError.exit_code, durable=True)
        self._ledger.move(RunEvent.GAVE_UP)
        return Directive(self._ledger.record.generation, tier=Tier.EXHAUSTED, stop_reason=reason)

    def _carry_out(self, asked: _Question) -> Directive:
        if self._all_damaged():
            return self._refuse_to_begin_anew()
        fault = asked.fault
        decision = self._ask(asked.state, fault, generation=self._next_generation())
        if self._config.ladder.shadow:
            decision = in_shadow(decision)
        self._ledger.note(
            "ladder.decided",
            step=fault.step,
            kind=str(fault.kind),
            highest_step=self._ledger.highest,
            durable=False,
            **decision.to_json(),
        )
        if decision.stop_exit_code is not None:
            return self._stop_for_good(decision, asked)
        unchanged = decision.tier in (None, Tier.RESUME) and decision.precision == self._config.train.precision
        replay = self._replay(decision)
        expected = self._expected(decision.restore, replay, fault.onset, _EXPECTED_LOSSES if unchanged else 1)
        generation = self._new_generation(decision.restore, replay, decision.reason)
        self.caught_up_at = self._ledger.highest
        self.first_step_of = generation
        return self._directive(decision, generation, replay, expected, exact=unchanged)

    def _ask(self, state: ladder.LadderState, fault: ladder.Fault, *, generation: int) -> ladder.Decision:
        return ladder.decide(
            state,
            fault,
            self._ledger.candidates(),
            self.policy,
            self._ledger.record.lr_events,
            run_precision=self._config.train.precision,
            generation=generation,
        )

    def _stop_for_good(self, decision: ladder.Decision, asked: _Question) -> Directive:
        described, step = asked.described, asked.fault.step
        if decision.stop_exit_code == LadderExhaustedError.exit_code:
            self._ledger.note(
                "run.exhausted",
                step=step,
                reason=decision.reason,
                why=decision.action.removeprefix("stop: "),
                tried=decision.tried,
                exit_code=LadderExhaustedError.exit_code,
                durable=True,
            )
            self._ledger.move(RunEvent.LADDER_USED_UP)
        else:
            self._ledger.note(
                "run.failed",
                step=step,
                error=described.error if described else asked.fault.detail,
                details=described.details if described else "",
                reason=decision.reason,
                exit_code=described.exit_code if described else decision.stop_exit_code,
                durable=True,
            )
            self._ledger.move(RunEvent.GAVE_UP)
        return Directive(generation=self._ledger.record.generation, tier=Tier.EXHAUSTED, stop_reason=decision.reason)

    def _directive(
        self,
        decision: ladder.Decision,
        generation: int,
        replay: tuple[LogSpan, ...],
        expected: tuple[tuple[int, float], ...],
        *,
        exact: bool,
    ) -> Directive:
        self.directive = Directive(
            generation=generation,
            tier=decision.tier,
            restore=decision.restore,
            precision=decision.precision,
            fp32_until=decision.fp32_until,
            lr_events=decision.lr_events,
            skip=decision.skip,
            stop_step=self._stop_step,
            reason=decision.reason,
            expected_losses=expected,
            exact=exact and self._config.train.deterministic,
            replay=replay,
        )
        self._ledger.loading = decision.restore
        return self.directive

    def _replay(self, decision: ladder.Decision) -> tuple[LogSpan, ...]:
        """The logged steps that lead on from the newest committed state, where no numbers are in doubt."""
        newest = max(self._ledger.candidates(), key=lambda item: (item.ref.step, item.ref.generation), default=None)
        wanted = (
            self._config.checkpoint.gradient_log != "off"
            and decision.tier in (None, Tier.RESUME)
            and decision.state.numeric is None
            and decision.precision == self._config.train.precision
            and decision.restore == (newest.ref if newest is not None else None)
        )
        return self._logged_from(decision.restore) if wanted and self._ledger.record.generations else ()

    def _logged_from(self, ref: CheckpointRef | None) -> tuple[LogSpan, ...]:
        step = ref.step if ref else 0
        stops = [stop for stop in (self._stop_step, self._log_until) if stop is not None]
        found = Reach()

        def look() -> None:
            nonlocal found
            found = find_reach(
                self._log_source,
                self._ledger.record.generations,
                step=step,
                world_size=self._config.cluster.workers,
                stop=min(stops, default=None),
            )

        try:
            self._within_deadline(look)
        except StorageError as error:
            found = Reach(why_not_further=str(error).replace("\n", "; "))
        reached = found.spans[-1].stop if found.spans else step
        if found.spans or found.why_not_further:
            self._ledger.note("log.found", step=reached, from_step=step, why_not_further=found.why_not_further)
        return found.spans

    def _expected(
        self, ref: CheckpointRef | None, replay: tuple[LogSpan, ...], onset: int | None, count: int
    ) -> tuple[tuple[int, float], ...]:
        """Recorded losses of the first steps after a restore, without a gap, as far as they lie before the onset."""
        first = replay[-1].stop if replay else ref.step if ref else 0
        stop = first + count if onset is None else min(first + count, onset)
        known = enumerate(self._ledger.losses_between(first, stop), start=first)
        return tuple((step, loss) for expected, (step, loss) in known if step == expected)

    def _new_generation(self, ref: CheckpointRef | None, replay: tuple[LogSpan, ...], reason: str) -> int:
        """Claim the next generation; it forks where the loaded state, or the log that goes on from it, ends."""
        number = self._next_generation()
        parent = CheckpointRef(replay[-1].generation, replay[-1].stop) if replay else ref
        made = Generation(
            number=number,
            parent=parent.generation if parent else None,
            fork_step=parent.step if parent else 0,
            reason=reason,
            owner=self._owner,
            time_s=time.time(),
        )
        self._within_deadline(lambda: create_generation(self._store, made))
        self._ledger.note(
            "generation.created",
            step=made.fork_step,
            generation=number,
            parent=made.parent,
            fork_step=made.fork_step,
            reason=reason,
            owner=self._owner,
        )
        self._on_generation(number)
        self._ledger.fork_at(made.fork_step)
        return number

    def _next_generation(self) -> int:
        """The next number. A supervisor that died may have claimed one and not have come to journal it."""
        if self._claimed is None:  # only once: what is claimed later is another supervisor's, and fences this one
            self._within_deadline(self._look_for_claims)
        return max(self._claimed or 0, self._ledger.record.generation) + 1

    def _look_for_claims(self) -> None:
        # By their names: a record that is damaged keeps its number, and the journal knows what it said.
        self._claimed = max(claimed_numbers(self._store), default=0)

    def _within_deadline(self, action: Callable[[], object]) -> None:
        """A decision that starts a generation waits for a store that is down, up to `journal.deadline_s`."""
        deadline = time.monotonic() + self._config.journal.deadline_s
        while True:
            try:
                action()
            except FencedError:
                raise
            except StorageError:
                if time.monotonic() > deadline:
                    raise
                self._pause.wait(_RETRY_S)
            else:
                return


def _name(ref: CheckpointRef) -> str:
    return f"{ref.generation}/{ref.step}"
