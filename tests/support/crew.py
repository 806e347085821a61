"""A whole run whose workers are played in this process: they say what real ones say, through the same methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.run_kit import (
    LIMIT_S,
    beat,
    checkpoint_meta,
    join_request,
    kinds,
    small_config,
    step_row,
    written_part,
)

from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import CheckpointRef, Directive, FaultKind, Incident
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.evidence.found import Found
from stormsail.supervisor.run import ClusterHands, RunSupervisor
from stormsail.supervisor.run_spec import RunSpec

STEPS = 40
KILLED = AttemptResult(ok=False, errors={1: "died"}, died=(1,))
ENDED = AttemptResult(ok=True, errors={})

Happening = Callable[["Crew"], AttemptResult | None]


@dataclass
class Crew:
    """Plays all workers of all attempts of one supervisor.

    Attributes:
        happenings: What goes wrong just before a step is done, by (attempt, step).
        directives: All that were obeyed, in order.
    """

    config: RunConfig
    happenings: dict[tuple[int, int], Happening] = field(default_factory=dict)
    directives: list[Directive] = field(default_factory=list)
    prepare: Callable[[], None] = lambda: None
    wait: Callable[[], None] = lambda: None
    silent: bool = False
    supervisor: RunSupervisor = field(init=False)
    attempt: int = 0
    step: int = 0

    def hands(self) -> ClusterHands:
        return ClusterHands(
            prepare=lambda _tell: self.prepare(),
            wait_for_room=lambda _config, _tell, _cancelled: self.wait(),
            run_attempt=self.run_attempt,
            witness=lambda targets, _limit_s: [Found(t.rank, "S (sleeping)", "", "", "none", "") for t in targets],
        )

    def run_attempt(self, config: RunConfig, attempt: int) -> AttemptResult:
        self.attempt = attempt
        workers = range(config.cluster.workers)
        for rank in workers:
            self.supervisor.hearing.join(join_request(rank, attempt=attempt))
        placement = self.supervisor.hearing.placement(attempt, 0)
        assert placement is not None
        self.obey(placement.directive)
        return self._steps()

    def _steps(self) -> AttemptResult:
        while self.step < STEPS and not self.directive.stop_reason:
            happens = self.happenings.pop((self.attempt, self.step), None)
            result = happens(self) if happens is not None else None
            if result is not None:
                return result
            if happens is not None:
                continue
            reply = self.do_step()
            if reply.abort:
                return AttemptResult(ok=False, errors={-1: "left"})
            if self.step % 10 == 0 or reply.stop_requested:
                self.save()
            if reply.stop_requested:
                return self.end("stopped")
        return self.end("stopped" if self.directive.stop_reason else "done")

    @property
    def directive(self) -> Directive:
        return self.directives[-1]

    def obey(self, directive: Directive) -> None:
        self.directives.append(directive)
        self.step = directive.restore.step if directive.restore else 0

    def do_step(self) -> Any:
        row = step_row(self.step, generation=self.directive.generation, precision=self.directive.precision)
        self.step += 1
        return self.supervisor.hearing.heartbeat(
            beat(attempt=self.attempt, step=row.step, generation=row.generation, rows=(row,))
        )

    def save(self) -> None:
        ref = CheckpointRef(self.directive.generation, self.step)
        for rank in range(2):
            part = written_part(self.supervisor._store, ref, rank, world_size=2, seed=self.step)
            meta = checkpoint_meta(self.step, 2) if rank == 0 else None
            self.supervisor.hearing.part_written(part, meta, 0.1)

    def end(self, outcome: str) -> AttemptResult:
        line = (1, "loop.ended", {"outcome": outcome, "step": self.step, "applied": self.step})
        if not self.silent:
            self.supervisor.hearing.heartbeat(beat(attempt=self.attempt, step=self.step, lines=(line,)))
        self.silent = False
        return ENDED


@dataclass
class Place:
    """Where the run of a test lives."""

    folder: Path
    config: RunConfig = field(default_factory=lambda: small_config(journal={"deadline_s": LIMIT_S}))

    @property
    def address(self) -> StoreAddress:
        return StoreAddress(f"file://{self.folder}/store")

    def crew(self, owner_id: str = "one", **more: Any) -> Crew:
        """A crew with its supervisor."""
        made = Crew(self.config, **more)
        spec = RunSpec(
            actor="run:run",
            name="run",
            config=dump_config(self.config),
            store=self.address,
            folder=str(self.folder / "local"),
            ray_path=str(self.folder / "ray"),
            import_paths=(),
            version="1",
            owner_id=owner_id,
        )
        made.supervisor = RunSupervisor(spec, owner=owner_id, host="127.0.0.1", hands=made.hands())
        return made

    def drive(self, owner_id: str = "one", **more: Any) -> Crew:
        """Run to the end."""
        crew = self.crew(owner_id, **more)
        crew.supervisor.drive()
        return crew

    @property
    def events(self) -> list[Event]:
        return Journal.read(open_store(self.address))

    @property
    def story(self) -> list[str]:
        """What happened, without what happens again and again."""
        return kinds(self.events, without=("checkpoint.committed", "checkpoint.good", "world.formed"))


def kill(_crew: Crew) -> AttemptResult:
    return KILLED


def spoil(crew: Crew) -> None:
    """Rank 0 reports a spike and all obey the answer."""
    incident = Incident(crew.directive.generation, crew.step, crew.step, FaultKind.SPIKE, 14.0, {"reason": "z 14"})
    crew.obey(crew.supervisor.answering.incident(incident))


def ask_to_stop(crew: Crew) -> None:
    crew.supervisor.request_stop("enough")
