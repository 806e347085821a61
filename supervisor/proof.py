"""What the replay of an incident's steps proves: whether the trouble comes back, and if so, which change heals it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.platform.diagnosis import Cause, Diagnosis, Outcome, ReplayPlan, ReplayResult, Sign, TraceRow, Variant
from stormsail.supervisor.case import LAYERS_SHOWN, RESTART_STEPS, Case, exploded, growth, vanishes
from stormsail.supervisor.hints import HINT
from stormsail.workers.detect.harm import HEALED, harms, healed, outliers
from stormsail.workers.detect.signs import Limits, dead_groups
from stormsail.workers.replay import bits

_ILL = 0.5  # harm of a step at the limit of what is calm


class Proof:
    """The replay's outcomes, compared with what was recorded.

    Args:
        case: The incident.
        plan: The replay that was asked for.
        result: What it gave; at least one outcome, and the first is of `Variant.SAME`.

    Attributes:
        differs: First step whose bits are not the recorded ones; None if there is none.
    """

    def __init__(self, case: Case, plan: ReplayPlan, result: ReplayResult) -> None:
        self.case, self.plan, self.result = case, plan, result
        self.same = [outcome for outcome in result.outcomes if outcome.variant is Variant.SAME]
        self.recorded = {row.step: row for row in plan.recorded}
        first = self.same[0]
        known = [(row, cost) for row, cost in zip(first.rows, first.expected, strict=True) if row.step in self.recorded]
        costs = [cost for _, cost in known]
        before = harms([self.recorded[row.step] for row, _ in known], costs, case.limits)
        self.gone = healed(before, harms([row for row, _ in known], costs, case.limits))
        self.ill = case.onset >= 0 and max(before, default=0.0) >= _ILL
        self.again = [row for row in (*result.prefix, *first.rows) if row.step in self.recorded]
        self.differs = next((row.step for row in self.again if bits(row) != bits(self.recorded[row.step])), None)
        self.reference = harms(first.rows, first.expected, case.limits)

    @property
    def vanished(self) -> bool:
        """Whether the same steps went well this time, or a harmless incident left other bits."""
        return self.gone >= HEALED if self.ill else self.plan.exact and self.differs is not None

    def not_repeated(self) -> Diagnosis:
        """The trouble did not come back: it was not in the data, the model, the plan or the precision."""
        gone = f"the same steps again went well ({self.gone:.0%} of the harm gone)" if self.ill else "no harm is seen"
        doubt = self._doubt()
        if doubt:
            return Diagnosis(Cause.UNKNOWN, 0.5, (gone, doubt))
        agree = f"two replays agree; the recorded pass leaves them at step {self.differs}"
        restart = self._restart()
        if restart is not None:
            after = f"the state was loaded for step {restart}"
            if Sign.UPDATE in self.case.signs:
                jump = max(row.update_rms for row in self.case.ill[:2]) / max(self.case.limits.update, 1e-30)
                return Diagnosis(Cause.RESUME, 0.9, (gone, after, f"updates {jump:.1f} x as large as before", agree))
            return Diagnosis(Cause.RESUME, HINT, (gone, after, agree))
        return Diagnosis(Cause.HARDWARE, 0.95 if self.plan.exact else 0.8, (gone, agree))

    def _doubt(self) -> str:
        """Why a pass that did not repeat proves nothing, or ""."""
        if len(self.same) < 2:  # noqa: PLR2004
            return "no budget was left to see whether replays agree"
        if not self._replays_agree():
            return "but two replays differ from each other as well"
        if self.differs is None or (self.plan.exact and not self._agreed_before()):
            return "but no step before it repeats the recorded one"
        changed = next((row.step for row in self.again if _other_work(row, self.recorded[row.step])), None)
        if changed is not None and changed <= self.differs:
            return f"but step {changed} was not the same work: another batch or learning rate"
        return ""

    def repeated(self) -> Diagnosis:
        """The trouble came back: ask which change heals it."""
        if not self.ill:
            return self._harmless()
        back = "the same steps bring it back" + (", bit for bit" if self.differs is None else "")
        for variant, name in _CURES.items():
            share = self._healed(variant)
            if share is None or share < HEALED:
                continue
            cured = f"{_WORDS[variant]} heals it ({share:.0%} of the harm gone)"
            return self._cured(variant, name, (cured, back))
        tried = [outcome.variant for outcome in self.result.outcomes if outcome.variant is not Variant.SAME]
        untried = [_WORDS[variant] for variant in _CURES if variant not in tried and self._could(variant)]
        evidence = (back, *(f"{_WORDS[variant]} does not heal it" for variant in tried))
        if untried:
            evidence = (*evidence, f"not tried, for want of budget: {', '.join(untried)}")
        sure = HINT if untried else 0.85
        if exploded(self.case, self.same[0].rows):
            return Diagnosis(Cause.EXPLOSION, sure, (growth(self.case), *evidence))
        anatomy = _anatomy(self.case, self.same[0].rows)
        # A confident verdict stops the run, so that nothing but the failure of all cures is not enough for one.
        return Diagnosis(Cause.ARCHITECTURE, sure if anatomy else HINT, (*anatomy, *evidence))

    def _harmless(self) -> Diagnosis:
        """The steps did little, if anything; the samples may still be strange."""
        harmless = "the recorded steps did no harm that could be measured"
        if not self.result.suspects:
            same = "the same steps gave the same bits" if self.plan.exact and self.differs is None else ""
            return Diagnosis(Cause.UNKNOWN, 0.3, (harmless, same) if same else (harmless,))
        return self._blame_data(0.75, (harmless,))

    def _blame_data(self, sure: float, evidence: tuple[str, ...]) -> Diagnosis:
        places = {place for start, stop in self.result.suspects for place in range(start, stop)}
        steps = tuple(sorted({score.step for score in self.result.scores if score.position in places}))
        strange = outliers(self.result.scores, self.case.onset)
        line = f"{len(strange)} samples of {len(steps)} batches stand out under the weights from before"
        return Diagnosis(Cause.DATA, sure, (line, *evidence), steps=steps, suspects=self.result.suspects)

    def _cured(self, variant: Variant, cause: Cause, evidence: tuple[str, ...]) -> Diagnosis:
        if variant is Variant.SMALLER_LR and vanishes(self.case, self.same[0].rows):
            return Diagnosis(Cause.ARCHITECTURE, 0.8, (*_anatomy(self.case, self.same[0].rows), *evidence))
        if variant is Variant.WITHOUT_SUSPECTS:
            return self._blame_data(0.9, evidence)
        return Diagnosis(cause, 0.9, evidence)

    def _healed(self, variant: Variant) -> float | None:
        for outcome in self.result.outcomes[1:]:
            if outcome.variant is variant and outcome.finished:
                return healed(self.reference, harms(outcome.rows, outcome.expected, self.case.limits))
        return None

    def _could(self, variant: Variant) -> bool:
        return variant is not Variant.WITHOUT_SUSPECTS or bool(self.result.suspects)

    def _replays_agree(self) -> bool:
        """Whether two replays give the same bits, or differ far less than the recorded pass does from them."""
        first, second = self.same[0], self.same[1]
        if all(bits(a) == bits(b) for a, b in zip(first.rows, second.rows, strict=False)):
            return True
        return not self.plan.exact and _spread(first, second, self.case.limits) < 1.0 - HEALED

    def _agreed_before(self) -> bool:
        first = self.again[0] if self.again else None
        return first is not None and bits(first) == bits(self.recorded[first.step])

    def _restart(self) -> int | None:
        steps = [step for step in (self.differs if self.plan.exact else None, self.case.onset) if step]
        here = min(step for step in steps if step >= 0)
        for row in self.case.trace.rows:
            if row.restored and row.step <= here <= row.step + RESTART_STEPS:
                return row.step
        return None


_CURES = {
    Variant.FP32: Cause.NUMERICS,
    Variant.WITHOUT_SUSPECTS: Cause.DATA,
    Variant.SMALLER_LR: Cause.OSCILLATION,
}
_WORDS = {
    Variant.FP32: "FP32",
    Variant.WITHOUT_SUSPECTS: "leaving the suspect samples out",
    Variant.SMALLER_LR: "a smaller learning rate",
}


def _other_work(row: TraceRow, recorded: TraceRow) -> bool:
    """Whether the two passes did not even do the same; 0 is not known."""
    pairs = ((row.batch, recorded.batch), (row.lr, recorded.lr))
    return any(now and before and now != before for now, before in pairs)


def _spread(first: Outcome, second: Outcome, limits: Limits) -> float:
    """Mean difference of the harm between two replays."""
    pairs = zip(harms(first.rows, first.expected, limits), harms(second.rows, second.expected, limits), strict=True)
    apart = [abs(a - b) for a, b in pairs]
    return sum(apart) / max(len(apart), 1)


def _anatomy(case: Case, rows: Sequence[TraceRow]) -> tuple[str, ...]:
    found = []
    dead = sorted({index for row in rows for index in dead_groups(row, case.limits)})
    zeros = max((row.zero_share for row in rows), default=-1.0)
    if zeros > case.limits.zero_share >= 0.0 and Sign.DEAD in case.signs:
        found.append(f"{zeros:.1%} of the gradient's elements are 0 (calm: {case.limits.zero_share:.1%})")
    if dead:
        found.append(f"no gradient reaches {', '.join(case.trace.names[index] for index in dead[:LAYERS_SHOWN])}")
    if vanishes(case, rows):
        found.append("gradients fade on their way to the first blocks")
    return tuple(found)
