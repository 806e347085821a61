"""A numeric incident on its way to a verdict: what is replayed, what it meant, and what is noted of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stormsail.platform.config.model import RunConfig
from stormsail.platform.diagnosis import Cause, Diagnosis, ReplayPlan, ReplayResult, spoken
from stormsail.platform.messages import FaultKind, Incident, StepRow
from stormsail.supervisor.case import Case, open_case
from stormsail.supervisor.classify import classify
from stormsail.supervisor.diagnose import plan_replay
from stormsail.supervisor.hints import hint
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.tracing import trace_of
from stormsail.workers.detect.signs import TRACE_STEPS


class Diagnosing:
    """Diagnoses the incidents of one run; called with the ledger's lock held.

    Args:
        config: The run.
        ledger: What is known, and where verdicts are noted.
    """

    def __init__(self, config: RunConfig, ledger: Ledger) -> None:
        self._config = config
        self._ledger = ledger
        self._open: tuple[Case, ReplayPlan] | None = None

    def plan(self, incident: Incident) -> ReplayPlan | None:
        """The replay that an incident needs, or None where it is decided without.

        Only what opens an episode is diagnosed: when the trouble comes back, the ladder's next tier is the answer.
        Without a replay the rows still give a hint, which is noted for people and never sure enough for the ladder.
        """
        self._open = None
        if self._ledger.record.ladder.numeric is not None:
            return None
        if not self._config.diagnose.enabled:
            self.hint(incident)
            return None
        if incident.kind is FaultKind.DESYNC:
            self._skip(incident, "ranks disagreed about the plan; a replay says nothing about that")
            return None
        rows = self._rows(incident)
        case = open_case(trace_of(rows, incident), incident.onset)
        if case is None:
            self._skip(incident, f"only {len(rows)} steps are known from before it")
            return None
        plan = plan_replay(
            case,
            [candidate.ref for candidate in self._ledger.candidates()],
            exact=self._config.train.deterministic,
            budget_steps=self._config.diagnose.budget_steps,
        )
        if isinstance(plan, str):
            self._skip(incident, plan)
            self._note(hint(case), incident)
            return None
        if not self._comparable(rows, plan.start, incident):
            plan = replace(plan, exact=False)
        self._open = (case, plan)
        self._ledger.note(
            "diagnosis.begun",
            step=plan.start,
            onset=plan.onset,
            first=plan.window[0],
            last=plan.window[1] - 1,
            exact=plan.exact,
            budget_steps=plan.budget_steps,
        )
        return plan

    def hint(self, incident: Incident) -> str:
        """Note what the rows around an incident look like, and name the kind in words; "" where they do not tell one."""
        if incident.kind is FaultKind.DESYNC:  # named by itself: its step has no numbers to look at
            return ""
        case = open_case(trace_of(self._rows(incident), incident), incident.onset)
        if case is None:
            return ""
        found = hint(case)
        self._note(found, incident)
        return "" if found.cause is Cause.UNKNOWN else spoken(found.cause, found.confidence)

    def conclude(self, incident: Incident, result: ReplayResult) -> Diagnosis:
        """The verdict, noted with its evidence; after a restart of the supervisor the replay says nothing any more."""
        case, plan = self._open or (None, None)
        self._open = None
        found = classify(case, plan, result)
        self._note(found, incident, result)
        if found.confident and found.cause is Cause.HARDWARE:
            where = f"rank {', '.join(map(str, found.ranks))}" if found.ranks else "no single rank stands out"
            self._ledger.note(
                "hardware.suspected",
                step=found.onset,
                ranks=list(found.ranks),
                why=f"step {found.onset} was computed wrongly and is right when it is computed again ({where})",
                todo="test the node before it is used again",
            )
        return found

    def _note(self, found: Diagnosis, incident: Incident, result: ReplayResult | None = None) -> None:
        self._ledger.note(
            "diagnosis.made",
            step=found.onset if found.onset >= 0 else incident.onset,
            computed_steps=0 if result is None else result.steps,
            variants=[] if result is None else [str(outcome.variant) for outcome in result.outcomes],
            **_plain(found),
        )

    def _rows(self, incident: Incident) -> list[StepRow]:
        return self._ledger.rows_before(incident.step, TRACE_STEPS)

    def _skip(self, incident: Incident, why: str) -> None:
        self._ledger.note("diagnosis.skipped", step=incident.step, why=why)

    def _comparable(self, rows: list[StepRow], start: int, incident: Incident) -> bool:
        """Whether the recorded steps were computed by this very world, in the run's precision."""
        mine = [row for row in rows if row.step >= start]
        return all(
            row.generation == incident.generation and row.precision == self._config.train.precision for row in mine
        )


def _plain(found: Diagnosis) -> dict[str, Any]:
    """As plain JSON values."""
    return {
        "cause": str(found.cause),
        "confidence": found.confidence,
        "evidence": list(found.evidence),
        "layers": list(found.layers),
        "ranks": list(found.ranks),
        "suspect_steps": list(found.steps),
        "suspects": [list(pair) for pair in found.suspects],
    }
