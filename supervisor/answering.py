"""What rank 0 asks when training cannot go on as it is: an incident, or a state or a log that does not load.

Called by Ray in many threads; the ledger's lock orders them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stormsail.platform.config.model import RunConfig
from stormsail.platform.diagnosis import Diagnosis, ReplayResult
from stormsail.platform.messages import CheckpointRef, Directive, FaultKind, Incident, Tier
from stormsail.supervisor import ladder
from stormsail.supervisor.committer import SETTLE_S, Committer
from stormsail.supervisor.deciding import Decider
from stormsail.supervisor.diagnose import left_out, mildest_tier
from stormsail.supervisor.diagnosing import Diagnosing
from stormsail.supervisor.ledger import Ledger
from stormsail.supervisor.phases import RunEvent


class Answering:
    """Answers the questions of the attempt that is under way; who asks too late is told to stop.

    Args:
        config: The run.
        ledger: What is known.
        decider: Decides.
        committer: What it is just publishing counts for a decision.
    """

    def __init__(self, config: RunConfig, ledger: Ledger, *, decider: Decider, committer: Committer) -> None:
        self._ledger = ledger
        self._decider = decider
        self._committer = committer
        self._diagnosis = Diagnosing(config, ledger)
        self._listening = False

    @property
    def listening(self) -> bool:
        """Whether an attempt is under way."""
        return self._listening

    def begin(self) -> None:
        """A new attempt starts."""
        self._listening = True

    def end(self) -> None:
        """The attempt is over: a decision that was asked for in it is not taken any more."""
        self._listening = False

    def incident(self, incident: Incident) -> Directive:
        """Rank 0 needs a decision; every rank obeys the answer, or carries out the experiment that it asks for."""
        with self._ledger.lock:
            if not self._is_current(incident):
                return self._too_late()
            if self._ledger.stop_reason:
                # No repair for a run that ends anyway: the newest committed state stands.
                return Directive(incident.generation, stop_reason=self._ledger.stop_reason)
            self._ledger.move(RunEvent.FAULT)
            self._ledger.note(
                "fault.detected",
                **_facts(incident),
            )
        # Not under the lock: what is being published must be able to note that it was.
        self._committer.settle(SETTLE_S)
        with self._ledger.lock:
            # Meanwhile the attempt may have broken off, and that fault been answered: one fault, one decision.
            if not self._is_current(incident):
                return self._too_late()
            plan = self._diagnosis.plan(incident)
            if plan is not None:
                return Directive(incident.generation, experiment=plan, reason="find out what it was")
            return self._decider.decide(_fault(incident))

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        """The experiment is done: judge it, and decide."""
        with self._ledger.lock:
            if not self._is_current(incident):
                return self._too_late()
            found = self._diagnosis.conclude(incident, result)
            return self._decider.decide(_fault(incident, found))

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        """A checkpoint could not be loaded: it is never taken again, and the question is asked again."""
        with self._ledger.lock:
            directive = self._decider.directive
            if not self._listening or directive is None or directive.restore != ref:
                return self._too_late()
            self._ledger.note("checkpoint.corrupt", step=ref.step, generation=ref.generation, problem=problem)
            return self._decider.decide_again()

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        """The gradient log cannot be used from a step on: those are computed again, after what leads up to it."""
        with self._ledger.lock:
            directive = self._decider.directive
            if not self._listening or directive is None or directive.generation != generation:
                return self._too_late()
            self._ledger.note("log.refused", step=step, generation=generation, problem=problem)
            return self._decider.decide_again(log_until=step)

    def shadowed(self, fields: Mapping[str, Any]) -> None:
        """Shadow mode: say what would have been done about an incident; training has gone on already."""
        incident = Incident(**{**fields, "kind": FaultKind(fields["kind"])})
        likely = self._diagnosis.hint(incident)
        decision = self._decider.would_decide(_fault(incident))
        told = decision.to_json()
        self._ledger.note(
            "ladder.shadowed",
            **_facts(incident),
            diagnosis=likely,
            action=decision.action,
            reason=decision.reason,
            tier=told["tier"],
            restore=told["restore"],
        )

    def _is_current(self, incident: Incident) -> bool:
        return self._listening and incident.generation == self._ledger.record.generation

    def _too_late(self) -> Directive:
        return Directive(self._ledger.record.generation, stop_reason="an older generation asked")


def _reason(incident: Incident) -> str:
    return str(incident.evidence.get("reason", ""))


def _facts(incident: Incident) -> dict[str, Any]:
    """What is noted of an incident, whatever becomes of it."""
    return {
        "step": incident.step,
        "kind": str(incident.kind),
        "onset": incident.onset,
        "severity": incident.severity,
        "evidence": incident.evidence,
        "error": _reason(incident),
    }


def _fault(incident: Incident, found: Diagnosis | None = None) -> ladder.Fault:
    detail = _reason(incident)
    if found is not None:
        detail += f"; diagnosis: {found.cause}, {found.confidence:.0%} sure"
    return ladder.Fault(
        kind=incident.kind,
        step=incident.step,
        onset=incident.onset,
        time_s=time.time(),
        signature=str(incident.kind),
        detail=detail,
        mildest=Tier.RESUME if found is None else mildest_tier(found),
        suspects=() if found is None else left_out(found),
    )
