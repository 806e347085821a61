"""What the rows of an incident look like, where nothing was computed again: hints, none of them confident. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stormsail.platform.diagnosis import Cause, Diagnosis, Sign
from stormsail.supervisor.case import RESTART_STEPS, Case, exploded, growth, placed, vanishes
from stormsail.workers.detect.signs import is_finite, signs_of

HINT = 0.6
"""Confidence that rows alone can be worth."""
_GUESS = 0.3  # and what they are worth where other causes look alike


def verdict_of_rows(case: Case, *, why: str = "", broken: bool = False) -> Diagnosis:
    """The verdict on an incident without a replay.

    Args:
        case: The incident.
        why: Why there is no replay; "" if none was asked for.
        broken: An error ended the replay; what the rows look like is then not told either.
    """
    found = Diagnosis(Cause.UNKNOWN, 0.0) if broken else _by_hints(case)
    evidence = (*found.evidence, f"no replay: {why}" if why else "from the rows alone, without a replay")
    return placed(case, replace(found, confidence=min(found.confidence, HINT), evidence=evidence))


def hint(case: Case) -> Diagnosis:
    """What the rows alone are worth telling. A guess is no cause yet: it would send people looking in the wrong place."""
    found = verdict_of_rows(case)
    if found.cause is Cause.UNKNOWN or found.confidence >= HINT:
        return found
    seen, *rest = found.evidence
    return replace(found, cause=Cause.UNKNOWN, confidence=0.0, evidence=(f"{seen}: that has several causes", *rest))


def _by_hints(case: Case) -> Diagnosis:
    """What the rows look like."""
    if not case.ill:
        return Diagnosis(Cause.UNKNOWN, 0.0, ("no step differs from the calm ones before it",))
    first = signs_of(case.ill[0], case.limits)
    restarted = any(row.restored and row.step <= case.onset <= row.step + RESTART_STEPS for row in case.trace.rows)
    once = Sign.NONFINITE in first and len(case.ill) > 1 and is_finite(case.ill[1])
    dead = Sign.DEAD in case.signs
    hints: Sequence[tuple[bool, Cause, float, Callable[[], str]]] = (
        (restarted and Sign.UPDATE in case.signs, Cause.RESUME, HINT, lambda: "updates jumped behind a restart"),
        (once, Cause.HARDWARE, _GUESS, lambda: "once only"),
        (Sign.NONFINITE in case.signs, Cause.NUMERICS, HINT, lambda: "non-finite values"),
        (exploded(case, case.ill), Cause.EXPLOSION, HINT, lambda: growth(case)),
        (dead, Cause.ARCHITECTURE, HINT, lambda: "layers do not learn"),
        (
            vanishes(case, case.ill),
            Cause.ARCHITECTURE,
            _GUESS,
            lambda: "gradients fade on their way to the first layers",
        ),
        (Sign.RATE in case.signs, Cause.OSCILLATION, HINT, lambda: "the learning rate had jumped"),
        (bool(first & {Sign.LOSS, Sign.LOSS_LOW}), Cause.DATA, _GUESS, lambda: "the loss of a batch stands out"),
    )
    for holds, cause, confidence, say in hints:
        if holds:
            return Diagnosis(cause, confidence, (say(),))
    return Diagnosis(Cause.UNKNOWN, 0.0, ("no known pattern",))
