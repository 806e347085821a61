"""A decider at work: with its ledger, a store that can go away, and somebody who takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.fragile_store import FragileStore
from tests.support.run_kit import LIMIT_S, kinds, step_row

from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal import Journal
from stormsail.platform.messages import Directive
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.faults import Described
from stormsail.supervisor.ladder import Fault
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunEvent, RunPhase


class Desk:
    """A decider with its ledger and a store that can go away."""

    def __init__(self, folder: Path, config: RunConfig, **more: Any) -> None:
        self.store = FragileStore()
        self.config = config
        self.folder = folder
        self.generations: list[int] = []
        self.ledger = Ledger(self.store, folder, writer="one", deadline_s=config.journal.deadline_s)
        self.decider = self.hire(**more)

    def hire(self, *, stop_step: int | None = None, **more: Any) -> Decider:
        """A decider for what is known so far."""
        return Decider(
            self.config,
            self.ledger,
            self.store,
            owner="test",
            stop_step=stop_step,
            on_generation=self.generations.append,
            **more,
        )

    def succeed(self, **more: Any) -> None:
        """Another supervisor takes over."""
        self.ledger.flush(LIMIT_S)
        self.ledger = Ledger(self.store, self.folder / "next", writer="two", deadline_s=0.1)
        self.decider = self.hire(**more)

    def run_to(self, step: int, *, checkpoints: tuple[int, ...] = (), good: bool = True) -> None:
        """Do steps up to before `step`, with commits on the way."""
        generation = self.ledger.record.generation
        if self.ledger.phase is RunPhase.WAITING:
            self.ledger.move(RunEvent.RESOURCES_READY)
        if self.ledger.phase in (RunPhase.STARTING, RunPhase.RECOVERING):
            self.ledger.move(RunEvent.STEPPING)
        for done in range(self.ledger.position, step):
            self.ledger.add_row(step_row(done, generation=generation))
        for at in checkpoints:
            self.ledger.note("checkpoint.committed", step=at, generation=generation, digest=f"d{at}", finite=True)
            if good:
                self.ledger.note("checkpoint.good", step=at, generation=generation)

    def decide(self, fault: Fault, described: Described | None = None) -> Directive:
        """Its answer to a fault; a lost process is followed by a restart."""
        self.ledger.move(RunEvent.FAULT)
        directive = self.decider.decide(fault, described)
        if not directive.stop_reason and not fault.kind.numeric:
            self.ledger.move(RunEvent.RESTART)
        return directive

    @property
    def journal(self) -> list[str]:
        return kinds(Journal.read(self.store))
