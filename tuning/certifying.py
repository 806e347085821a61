"""What a sweep vouches for: the certificate's evidence and limits, from the answer; pure."""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.platform.certificate import Certificate, certified_values, values_digest
from stormsail.platform.config.model import RunConfig
from stormsail.tuning.answer import Answer
from stormsail.tuning.objective import CellScore
from stormsail.tuning.transfer import Value


def certify(
    answer: Answer,
    winner: CellScore,
    config: RunConfig,
    *,
    values: Sequence[Value],
    kind: str,
    sweep: str,
    made_s: float,
) -> Certificate:
    """The certificate of a configuration that a sweep's winner was written into.

    Args:
        answer: The sweep's answer.
        winner: Its winner.
        config: The target with the winner's values.
        values: What was written into it.
        kind: Of the trials: `bare` or `supervised`.
        sweep: `NAME@NUMBER`.
        made_s: Now, in seconds since the epoch.
    """
    certified = certified_values(config)
    assumptions = answer.handover.assumptions if answer.handover is not None else ()
    return Certificate(
        sweep=sweep,
        made_s=made_s,
        digest=values_digest(certified),
        values=certified,
        evidence=(*evidence_of(answer, winner), *(f"{one.key} = {one.value}: {one.why}" for one in values)),
        limits=(*assumptions, *_limits(winner, kind, config.train.precision)),
    )


def evidence_of(answer: Answer, winner: CellScore) -> list[str]:
    """What was seen, one sentence each."""
    low, high = winner.success.low, winner.success.high
    found = [
        f"{winner.cell}: {winner.stable} of {winner.trials} trials stable (95 % interval {low:.0%} to {high:.0%}).",
        f"It was the first of {len(answer.rows)} settings by divergence rate, sensitivity to the learning rate and final loss.",
        f"The known-bad control failed in {answer.control.failed} of {answer.control.trials} trials.",
    ]
    if winner.lr_sensitivity is not None:
        found.append(f"Sensitivity to the learning rate {winner.lr_sensitivity:.3f} nats.")
    return [*found, *(f"Largest stable learning rate on {edge.label}." for edge in answer.edges)]


def _limits(winner: CellScore, kind: str, precision: str) -> list[str]:
    half = (winner.success.high - winner.success.low) / 2
    untried = "" if precision == "fp32" else f"; the target's {precision} was not tried"
    return [
        *([f"Trials computed in fp32, without DeepSpeed and the ladder{untried}."] if kind == "bare" else []),
        f"With {winner.trials} trials the success rate is known to about ±{100 * half:.0f} points.",
        "Small proxies rarely spike by themselves: a rate of success says less here than the sensitivity does.",
    ]
