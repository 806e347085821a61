"""Reading a run from its storage: works while it runs and afterwards, and when Ray is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormsail.platform.journal import Journal
from stormsail.platform.journal_events import Event
from stormsail.platform.runs import RunPlace
from stormsail.platform.series import read_series
from stormsail.supervisor import telling
from stormsail.supervisor.checkpoint_view import live_candidates
from stormsail.supervisor.record import Record, fold

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run as its storage tells it.

    Attributes:
        place: Where it was read.
        events: The journal, oldest first.
        rows: All finished steps, in the order in which they were computed.
        record: What follows from the journal.
    """

    place: RunPlace
    events: list[Event]
    rows: list[Row]
    record: Record

    @property
    def last_step(self) -> int:
        """The next step to run, as far as storage knows."""
        return int(self.rows[-1]["step"]) + 1 if self.rows else 0


def read_run(place: RunPlace) -> ReadRun:
    """Read journal and series."""
    store = place.store()
    events = Journal.read(store)
    return ReadRun(place, events, list(read_series(store)), fold(events))


def read_record(place: RunPlace) -> Record:
    """How the run stands, from its journal alone."""
    return fold(Journal.read(place.store()))


def status_of(run: ReadRun) -> dict[str, Any]:
    """How the run stands, as JSON values."""
    last = run.rows[-1] if run.rows else {}
    usable = live_candidates(run.record)
    newest = usable[-1].ref if usable else None
    good = next((candidate.ref for candidate in reversed(usable) if candidate.good), None)
    episode = run.record.ladder.numeric or run.record.ladder.infra
    doing = run.record.evaluating
    return {
        "run": run.place.name,
        "incarnation": run.place.incarnation,
        "outcome": run.record.outcome or "unfinished",
        "exit_code": run.record.exit_code,
        "attempt": run.record.attempt,
        "generation": run.record.generation,
        "step": run.last_step,
        "applied": last.get("applied", 0),
        "skipped": run.last_step - int(last.get("applied", 0)),
        "loss": last.get("loss"),
        "grad_norm_before_clip": last.get("grad_norm"),
        "grad_norm_after_clip": last.get("clipped_norm"),
        "lr": last.get("lr"),
        "lr_factor": last.get("lr_factor"),
        "precision": last.get("precision"),
        "tier": episode.tier.number if episode else None,
        "skip": [list(pair) for pair in run.record.skip],
        "newest_checkpoint": None if newest is None else f"{newest.generation}/{newest.step}",
        "newest_good_checkpoint": None if good is None else f"{good.generation}/{good.step}",
        "evaluating": None if doing is None else {"step": doing.step, "since_s": doing.since_s},
        "updated_s": run.events[-1].time_s if run.events else None,
    }


def render_status(state: dict[str, Any]) -> str:
    """The status for people."""
    updated = telling.clock(state["updated_s"]) if state["updated_s"] else "never"
    tier = f"tier {state['tier']} of the ladder, not yet healthy for long enough" if state["tier"] else "calm"
    loss = "none yet" if state["loss"] is None else f"{state['loss']:.4f}"
    lines = [
        f"{state['run']} ({state['outcome']}, last event {updated})",
        f"  step         {state['step']} ({state['skipped']} without an update)",
        f"  attempt      {state['attempt']}, generation {state['generation']}",
        f"  loss         {loss}",
        f"  health       {tier}",
        f"  LR factor    {state['lr_factor'] if state['lr_factor'] is not None else 1.0}",
        f"  newest       {state['newest_checkpoint'] or 'no checkpoint yet'}",
        f"  known good   {state['newest_good_checkpoint'] or 'none yet'}",
    ]
    if state["evaluating"]:
        doing = state["evaluating"]
        lines.insert(2, f"  evaluating   after step {doing['step']}, since {telling.clock(doing['since_s'])}")
    if state["skip"]:
        lines.append(f"  skipped data {state['skip']} (sample positions)")
    return "\n".join(lines)
