"""What a finished step means to the run: its row, its phase, the ladder's probation, known-good states, its speed."""

from __future__ import annotations

from stormsail.platform.config.model import RunConfig
from stormsail.platform.messages import StepRow
from stormsail.supervisor import ladder
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.keeping import Keeper
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunEvent, RunPhase
from stormsail.supervisor.watch import throughput
from stormsail.workers.detect.beside import Beside


class Progress:
    """Takes finished steps up, each once; call it under the ledger's lock.

    Args:
        config: The run.
        ledger: What is known.
        decider: Knows what a repair is to catch up with.
        keeper: Knows about checkpoints.
    """

    def __init__(self, config: RunConfig, ledger: Ledger, *, decider: Decider, keeper: Keeper) -> None:
        self._ledger = ledger
        self._decider = decider
        self._keeper = keeper
        self._rates = Beside.of(config.detect).throughput
        self._throughput = throughput.Throughput()

    def begin(self) -> None:
        """A new attempt starts: how fast the one before was counts no more."""
        self._throughput = throughput.Throughput()

    def take(self, row: StepRow) -> None:
        """Rank 0 has finished a step, or replayed it from the gradient log."""
        if self._ledger.is_replayed(row):
            self._ledger.add_replayed(row)
            return
        if not self._ledger.add_row(row):
            return
        self._move_on(row)
        self._watch_throughput(row)
        healthy = row.outcome != "dropped" and not row.flagged
        state, notes = ladder.observe(self._ledger.record.ladder, row.step, healthy, self._decider.policy)
        self._ledger.set_ladder(state)
        for note in notes:
            tier = str(note.tier) if note.tier else None
            self._ledger.note(note.kind, step=row.step, episode=note.episode, tier=tier, state=state.to_json())
        if healthy:
            self._keeper.promote(row.step)

    def _move_on(self, row: StepRow) -> None:
        decider = self._decider
        if self._ledger.phase in (RunPhase.STARTING, RunPhase.RECOVERING):
            replaying = decider.directive is not None and decider.directive.fp32_until is not None
            inside = replaying and row.precision == "fp32"
            self._ledger.move(RunEvent.REPLAY_BEGUN if inside else RunEvent.STEPPING)
        if decider.first_step_of == row.generation:
            decider.first_step_of = None
            self._ledger.note("recovery.first_step", step=row.step, at_s=row.time_s)
        if decider.caught_up_at is not None and row.step > decider.caught_up_at:
            decider.caught_up_at = None
            self._ledger.note("recovery.caught_up", step=row.step, at_s=row.time_s)

    def _watch_throughput(self, row: StepRow) -> None:
        self._throughput, change = throughput.observe(self._throughput, row, self._rates)
        if change is not None:
            self._ledger.note(
                "throughput.collapsed" if change.collapsed else "throughput.recovered",
                step=change.step,
                tokens_per_s=change.tokens_per_s,
                usual_tokens_per_s=change.usual_tokens_per_s,
            )
