"""What kind of trouble an incident was: from the rows around it and the replay of its steps to one verdict. Pure.

The order of the questions is the order of what can be trusted. Whether the same steps bring the trouble back is a
fact about bits; which change heals it is an experiment; what the rows look like is a hint. Without a replay there
are only hints, and no verdict from them is confident enough to change what the ladder does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stormsail.platform.diagnosis import (
    Cause,
    Diagnosis,
    Outcome,
    ReplayPlan,
    ReplayResult,
    Sign,
    Trace,
    TraceRow,
    Variant,
)
from stormsail.workers.detect.harm import HEALED, harms, healed, outliers
from stormsail.workers.detect.signs import (
    Limits,
    dead_groups,
    find_onset,
    is_finite,
    limits_of,
    middle_groups,
    signs_of,
)
from stormsail.workers.replay import bits

_RESTART_STEPS = 3
_EXPLODED = 10.0  # times the calm norm
_VANISHED = 0.4  # of the calm ratio between the first and the last third of the blocks
_ILL = 0.5  # harm of a step at the limit of what is calm
_HINT = 0.6  # what rows alone can be worth
_GUESS = 0.3  # and what they are worth where other causes look alike
_LAYERS_SHOWN = 4
_LAYER_RATIO = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of an incident.

    Attributes:
        trace: Rows up to it.
        onset: First abnormal step; -1 if no row looks abnormal.
        limits: What is calm.
        ill: Rows from the onset on.
        signs: Every sign that they show.
    """

    trace: Trace
    onset: int
    limits: Limits
    ill: tuple[TraceRow, ...]
    signs: frozenset[Sign]


def open_case(trace: Trace, reported: int | None) -> Case | None:
    """Look at the rows around an incident; None if there is nothing to go by.

    Args:
        trace: Rows up to the incident.
        reported: First abnormal step by the detector that spoke; None if none did.
    """
    onset = find_onset(trace, reported)
    if onset is None:
        limits = limits_of(trace.rows)
        return None if limits is None else Case(trace, -1, limits, (), frozenset())
    limits = limits_of([row for row in trace.rows if row.step < onset])
    ill = tuple(row for row in trace.rows if row.step >= onset)
    if limits is None or not ill:
        return None
    signs = frozenset(sign for row in ill for sign in signs_of(row, limits))
    return Case(trace, onset, limits, ill, signs)


def classify(case: Case | None, plan: ReplayPlan | None = None, result: ReplayResult | None = None) -> Diagnosis:
    """The verdict on an incident.

    Args:
        case: As `open_case` saw it.
        plan: The replay that was asked for, if any.
        result: What it gave.
    """
    if case is None:
        return Diagnosis(Cause.UNKNOWN, 0.0, ("too few steps are known to tell",))
    if plan is None or result is None or result.problem or not result.outcomes:
        why = result.problem if result is not None else ""
        found = _by_hints(case)
        if result is not None and result.broken:
            found = Diagnosis(Cause.UNKNOWN, 0.0)
        evidence = (*found.evidence, f"no replay: {why}" if why else "from the rows alone, without a replay")
        return _placed(case, replace(found, confidence=min(found.confidence, _HINT), evidence=evidence))
    case = _enriched(case, result)
    proof = _Proof(case, plan, result)
    found = proof.not_repeated() if proof.vanished else proof.repeated()
    if case.onset < 0 and proof.differs is not None:
        found = replace(found, onset=proof.differs)
    return _placed(case, found)


def hint(case: Case) -> Diagnosis:
    """What the rows alone are worth telling. A guess is no cause yet: it would send people looking in the wrong place."""
    found = classify(case)
    if found.cause is Cause.UNKNOWN or found.confidence >= _HINT:
        return found
    seen, *rest = found.evidence
    return replace(found, cause=Cause.UNKNOWN, confidence=0.0, evidence=(f"{seen}: that has several causes", *rest))


def _enriched(case: Case, result: ReplayResult) -> Case:
    """A replay measures in every step what a run samples; fill in what its calm steps say about layers."""
    calm = [row for row in (*result.prefix, *result.outcomes[0].rows) if row.step < case.onset and is_finite(row)]
    if case.limits.groups or not calm:
        return case
    limits = replace(
        case.limits,
        groups=middle_groups(calm),
        zero_share=max(case.limits.zero_share, *(row.zero_share for row in calm)),
    )
    first = result.outcomes[0].rows
    again = {row.step: row for row in first}
    ill = tuple(
        again[row.step] if row.step in again and bits(row) == bits(again[row.step]) else row for row in case.ill
    )
    signs = case.signs | frozenset(sign for row in ill for sign in signs_of(row, limits))
    trace = case.trace if case.trace.names else replace(case.trace, names=result.names)
    return Case(trace, case.onset, limits, ill, signs)


# ------------------------------------------------------------------------------------------------ with a replay


class _Proof:
    """The replay's outcomes, compared with what was recorded."""

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
            return Diagnosis(Cause.RESUME, _HINT, (gone, after, agree))
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
        sure = _HINT if untried else 0.85
        if _exploded(self.case, self.same[0].rows):
            return Diagnosis(Cause.EXPLOSION, sure, (_growth(self.case), *evidence))
        anatomy = _anatomy(self.case, self.same[0].rows)
        # A confident verdict stops the run, so that nothing but the failure of all cures is not enough for one.
        return Diagnosis(Cause.ARCHITECTURE, sure if anatomy else _HINT, (*anatomy, *evidence))

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
        if variant is Variant.SMALLER_LR and _vanishes(self.case, self.same[0].rows):
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
            if row.restored and row.step <= here <= row.step + _RESTART_STEPS:
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


# -------------------------------------------------------------------------------------------------- rows alone


def _by_hints(case: Case) -> Diagnosis:
    """What the rows look like."""
    if not case.ill:
        return Diagnosis(Cause.UNKNOWN, 0.0, ("no step differs from the calm ones before it",))
    first = signs_of(case.ill[0], case.limits)
    restarted = any(row.restored and row.step <= case.onset <= row.step + _RESTART_STEPS for row in case.trace.rows)
    once = Sign.NONFINITE in first and len(case.ill) > 1 and is_finite(case.ill[1])
    dead = Sign.DEAD in case.signs
    hints: Sequence[tuple[bool, Cause, float, Callable[[], str]]] = (
        (restarted and Sign.UPDATE in case.signs, Cause.RESUME, _HINT, lambda: "updates jumped behind a restart"),
        (once, Cause.HARDWARE, _GUESS, lambda: "once only"),
        (Sign.NONFINITE in case.signs, Cause.NUMERICS, _HINT, lambda: "non-finite values"),
        (_exploded(case, case.ill), Cause.EXPLOSION, _HINT, lambda: _growth(case)),
        (dead, Cause.ARCHITECTURE, _HINT, lambda: "layers do not learn"),
        (
            _vanishes(case, case.ill),
            Cause.ARCHITECTURE,
            _GUESS,
            lambda: "gradients fade on their way to the first layers",
        ),
        (Sign.RATE in case.signs, Cause.OSCILLATION, _HINT, lambda: "the learning rate had jumped"),
        (bool(first & {Sign.LOSS, Sign.LOSS_LOW}), Cause.DATA, _GUESS, lambda: "the loss of a batch stands out"),
    )
    for holds, cause, confidence, say in hints:
        if holds:
            return Diagnosis(cause, confidence, (say(),))
    return Diagnosis(Cause.UNKNOWN, 0.0, ("no known pattern",))


def _exploded(case: Case, rows: Sequence[TraceRow]) -> bool:
    """Whether the norm left the calm one by an order of magnitude and did not come back."""
    ratios = [row.grad_norm / max(case.limits.norm, 1e-30) for row in rows if row.step >= case.onset and is_finite(row)]
    return len(ratios) > 1 and sum(ratio > _EXPLODED for ratio in ratios) * 2 > len(ratios)


def _growth(case: Case) -> str:
    worst = max((row.grad_norm for row in case.ill if is_finite(row)), default=0.0)
    return f"the gradient norm rose to {worst / max(case.limits.norm, 1e-30):.0f} x its calm level"


def _vanishes(case: Case, rows: Sequence[TraceRow]) -> bool:
    """Whether gradients fade on their way to the first blocks, as they did not before."""
    calm = _fade(case, case.limits.groups)
    seen = [_fade(case, row.groups) for row in (*case.ill, *rows) if row.step > case.onset and is_finite(row)]
    found = sorted(value for value in seen if value is not None)
    return calm is not None and len(found) > 1 and found[1] < _VANISHED * calm


def _fade(case: Case, groups: Sequence[float]) -> float | None:
    """Mean gradient norm of the first third of the numbered layers over that of the last third."""
    blocks = [
        norm
        for name, norm in zip(case.trace.names, groups, strict=False)
        if any(part.isdecimal() for part in name.split("."))
    ]
    third = len(blocks) // 3
    if not third or not sum(blocks[-third:]):
        return None
    return sum(blocks[:third]) / sum(blocks[-third:])


def _anatomy(case: Case, rows: Sequence[TraceRow]) -> tuple[str, ...]:
    found = []
    dead = sorted({index for row in rows for index in dead_groups(row, case.limits)})
    zeros = max((row.zero_share for row in rows), default=-1.0)
    if zeros > case.limits.zero_share >= 0.0 and Sign.DEAD in case.signs:
        found.append(f"{zeros:.1%} of the gradient's elements are 0 (calm: {case.limits.zero_share:.1%})")
    if dead:
        found.append(f"no gradient reaches {', '.join(case.trace.names[index] for index in dead[:_LAYERS_SHOWN])}")
    if _vanishes(case, rows):
        found.append("gradients fade on their way to the first blocks")
    return tuple(found)


# ------------------------------------------------------------------------------------------------------- places


def _placed(case: Case, found: Diagnosis) -> Diagnosis:
    """Add where it was."""
    ranks = tuple(sorted({row.bad_rank for row in case.ill if row.bad_rank >= 0}))
    return replace(found, onset=max(found.onset, case.onset), layers=_in_front(case), ranks=ranks)


def _in_front(case: Case) -> tuple[str, ...]:
    """Layer groups whose gradient norm left its calm level most, at the onset and the step after; dead ones first."""
    rows = case.ill[:2]
    if not rows:
        return ()
    dead = {index for row in rows for index in dead_groups(row, case.limits)}
    ratios = [
        (max((row.groups[index] if index < len(row.groups) else 0.0) for row in rows) / max(calm, 1e-30), index)
        for index, calm in enumerate(case.limits.groups)
    ]
    grown = [index for ratio, index in sorted(ratios, reverse=True) if ratio > _LAYER_RATIO and index not in dead]
    return tuple(case.trace.names[index] for index in (*sorted(dead), *grown)[:_LAYERS_SHOWN])
