"""From trials to an answer: scores of cells with intervals, their order, the Pareto set, and whether the sweep counts; pure.

The order is lexicographic, divergence rate first, then sensitivity to the learning rate, then final loss; nothing is
folded into one weighted number. What ended far above the best without having diverged was slow: that costs sensitivity,
and no rank of stability. A figure that is missing ranks last, and NaN cannot occur in a comparison.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from stormsail.tuning.metrics import DIVERGED_NATS, Figures
from stormsail.tuning.space import Cell, Trial

_Z95 = 1.959963984540054
_LEAST_FOR_SPREAD = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """A trial and what it showed.

    Attributes:
        trial: The trial.
        figures: What it showed.
        wall_s: Seconds of its own computing, over all its attempts.
        restarts: How often it died by a fault and went on.
    """

    trial: Trial
    figures: Figures
    wall_s: float
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of trials.

    Attributes:
        share: In [0, 1]; 0 without trials.
        low: Lower end of the 95 % confidence interval.
        high: Upper end.
    """

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CellScore:
    """One row of the answer.

    Attributes:
        cell: The settings.
        seeds: Seeds per learning rate and proxy.
        trials: Trials that were measured.
        missing: Trials that were not (faulted, or not run yet).
        stable: Trials that neither diverged nor ended half a nat above the best of their proxy.
        success: Their rate.
        divergence: Rate of trials that diverged by their own course.
        incidents: Rate of trials in which the detectors would have opened an incident.
        lr_sensitivity: Mean over learning rates and proxies of min(final, initial) - best loss, in nats; what has no
            final loss counts with its initial one.
        spike_loss: Mean spike score of the loss.
        spike_norm: The same of the gradient norm.
        incidents_per_10k: Mean incident rate.
        max_logit: Largest attention logit, or None.
        update_rms_p99: Largest over trials, or None.
        clip_rate: Mean share of clipped steps.
        best_lr: Learning rate with the lowest mean final loss on the last proxy, or None.
        final_loss: That loss, mean over seeds, in nats; None if nothing was stable.
        final_sd: Standard deviation over seeds, or None with fewer than two.
        wall_s: Seconds of computing, all trials.
        verdict: `winner`, `pareto`, `dominated` or `incomplete`.
    """

    cell: Cell
    seeds: int
    trials: int
    missing: int
    stable: int
    success: Rate
    divergence: Rate
    incidents: Rate
    lr_sensitivity: float | None
    spike_loss: float
    spike_norm: float
    incidents_per_10k: float
    max_logit: float | None
    update_rms_p99: float | None
    clip_rate: float
    best_lr: float | None
    final_loss: float | None
    final_sd: float | None
    wall_s: float
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class ControlVerdict:
    """What became of the known-bad control.

    Attributes:
        failed: Control trials that failed.
        trials: Control trials that were measured.
        missing: Control trials that were not.
        failed_on: Proxies on which at least half of them failed.
        proxies: All proxies.
    """

    failed: int
    trials: int
    missing: int
    failed_on: tuple[str, ...]
    proxies: tuple[str, ...]

    @property
    def void(self) -> bool:
        """Whether the sweep shows nothing: a proxy too tame for settings known to be bad cannot tell good from bad."""
        return set(self.failed_on) != set(self.proxies)


def rate_of(outcomes: Mapping[int, Sequence[bool]]) -> Rate:
    """The rate of an outcome, with Wilson's 95 % interval for as many independent trials as these are worth.

    Steps never count: the unit is a trial, and trials with one seed share weights and order of data. Where seeds differ by
    more than chance would have it, the trials are worth fewer (Kish's design effect), down to one for each seed; with one
    seed nobody knows how seeds differ, and they are worth one. Seeds that agree wholly, at a share of 0 or 1, show no
    difference: all their trials count.

    Args:
        outcomes: Whether each trial had it, by seed.
    """
    seeds = [found for found in outcomes.values() if found]
    trials = sum(len(found) for found in seeds)
    if not trials:
        return Rate(0.0, 0.0, 1.0)
    share = sum(sum(found) for found in seeds) / trials
    low, high = wilson(share, trials / _design_effect(seeds, share, trials))
    return Rate(share, low, high)


def _design_effect(seeds: Sequence[Sequence[bool]], share: float, trials: int) -> float:
    """How many trials are worth one independent one, between 1 and those of one seed."""
    most = trials / len(seeds)
    if len(seeds) < _LEAST_FOR_SPREAD:
        return most
    by_chance = share * (1.0 - share) / most
    if by_chance == 0.0:
        return 1.0
    return min(max(variance([fmean(found) for found in seeds]) / by_chance, 1.0), most)


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate (Wilson 1927).

    Args:
        share: The rate, in [0, 1].
        trials: How many independent trials it rests on, at least 1; need not be whole.
    """
    square = _Z95**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials**2)
    half = _Z95 / (1 + square / trials) * math.sqrt(spread)
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def best_losses(measured: Iterable[Measured]) -> dict[str, float]:
    """The lowest final loss of any stable trial of each proxy, the control's apart."""
    best: dict[str, float] = {}
    for one in measured:
        loss = one.figures.final_loss
        if not one.figures.diverged and not one.trial.control and loss is not None:
            best[one.trial.proxy] = min(loss, best.get(one.trial.proxy, math.inf))
    return best


def failed(one: Measured, best: Mapping[str, float]) -> bool:
    """Whether a trial diverged, or ended half a nat above the best of its proxy."""
    loss = one.figures.final_loss
    if one.figures.diverged or loss is None:
        return True
    return loss > best.get(one.trial.proxy, math.inf) + DIVERGED_NATS


def judge_control(
    planned: Sequence[Trial], measured: Mapping[str, Measured], best: Mapping[str, float]
) -> ControlVerdict:
    """Look at the control's trials.

    Args:
        planned: The control's trials.
        measured: What was measured, by trial id.
        best: From `best_losses`.
    """
    seen: defaultdict[str, list[bool]] = defaultdict(list)
    missing = 0
    for trial in planned:
        one = measured.get(trial.id)
        if one is None:
            missing += 1
        else:
            seen[trial.proxy].append(failed(one, best))
    return ControlVerdict(
        failed=sum(sum(outcomes) for outcomes in seen.values()),
        trials=sum(len(outcomes) for outcomes in seen.values()),
        missing=missing,
        failed_on=tuple(proxy for proxy, outcomes in seen.items() if 2 * sum(outcomes) >= len(outcomes)),
        proxies=tuple(dict.fromkeys(trial.proxy for trial in planned)),
    )


def score_cells(planned: Sequence[Trial], measured: Mapping[str, Measured]) -> list[CellScore]:
    """Score every cell and give each its verdict, best first.

    Args:
        planned: All trials, the control's apart; those of the last proxy decide on final loss.
        measured: What was measured, by trial id.
    """
    best = best_losses(measured.values())
    by_cell: defaultdict[Cell, list[Trial]] = defaultdict(list)
    for trial in planned:
        by_cell[trial.cell].append(trial)
    last_proxy = planned[-1].proxy if planned else ""
    scores = [_score(cell, trials, measured, best, last_proxy) for cell, trials in by_cell.items()]
    return _with_verdicts(sorted(scores, key=rank))


def rank(score: CellScore) -> tuple[float, ...]:
    """The order of cells, smaller is better: complete, divergence rate, sensitivity, final loss; what is missing is last."""
    return (
        float(score.missing > 0),
        score.divergence.share,
        _or_last(score.lr_sensitivity),
        _or_last(score.final_loss),
    )


def dominates(one: CellScore, other: CellScore) -> bool:
    """Whether `one` is nowhere worse and somewhere better, in divergence rate, sensitivity and final loss."""
    mine, theirs = rank(one)[1:], rank(other)[1:]
    return all(a <= b for a, b in zip(mine, theirs, strict=True)) and mine != theirs


def _with_verdicts(ordered: list[CellScore]) -> list[CellScore]:
    from dataclasses import replace

    complete = [score for score in ordered if not score.missing and score.final_loss is not None]
    judged = []
    for score in ordered:
        if score not in complete:
            verdict = "incomplete" if score.missing else "unstable"
        elif score is complete[0]:
            verdict = "winner"
        else:
            verdict = "dominated" if any(dominates(other, score) for other in complete) else "pareto"
        judged.append(replace(score, verdict=verdict))
    return judged


def _score(
    cell: Cell, trials: Sequence[Trial], measured: Mapping[str, Measured], best: Mapping[str, float], last_proxy: str
) -> CellScore:
    found = [measured[trial.id] for trial in trials if trial.id in measured]
    by_seed: defaultdict[int, list[Measured]] = defaultdict(list)
    for one in found:
        by_seed[one.trial.seed].append(one)

    def rate(happened: Callable[[Measured], bool]) -> Rate:
        return rate_of({seed: [happened(one) for one in mine] for seed, mine in by_seed.items()})

    best_lr, final = _best_lr([one for one in found if one.trial.proxy == last_proxy])
    return CellScore(
        cell=cell,
        seeds=len({trial.seed for trial in trials}),
        trials=len(found),
        missing=len(trials) - len(found),
        stable=sum(not failed(one, best) for one in found),
        success=rate(lambda one: not failed(one, best)),
        divergence=rate(lambda one: bool(one.figures.diverged)),
        incidents=rate(lambda one: one.figures.incidents_per_10k > 0.0),
        lr_sensitivity=_sensitivity(found),
        spike_loss=_mean(one.figures.spike_loss for one in found),
        spike_norm=_mean(one.figures.spike_norm for one in found),
        incidents_per_10k=_mean(one.figures.incidents_per_10k for one in found),
        max_logit=max((one.figures.max_logit for one in found if one.figures.max_logit is not None), default=None),
        update_rms_p99=max(
            (one.figures.update_rms_p99 for one in found if one.figures.update_rms_p99 is not None), default=None
        ),
        clip_rate=_mean(one.figures.clip_rate for one in found),
        best_lr=best_lr,
        final_loss=fmean(final) if final else None,
        final_sd=stdev(final) if len(final) >= _LEAST_FOR_SPREAD else None,
        wall_s=math.fsum(one.wall_s for one in found),
    )


def loss_by_lr(found: Iterable[Measured]) -> dict[float, float | None]:
    """Mean loss that counts at each learning rate (`counted_loss` of each trial); None where none is known."""
    by_lr: defaultdict[float, list[float]] = defaultdict(list)
    for one in found:
        counted = counted_loss(one.figures)
        by_lr[one.trial.lr].extend([] if counted is None else [counted])
    return {lr: (fmean(losses) if losses else None) for lr, losses in sorted(by_lr.items())}


def counted_loss(figures: Figures) -> float | None:
    """min(final, initial) loss; a trial without a final loss, such as one that was ended early, counts with its initial one."""
    known = [value for value in (figures.final_loss, figures.initial_loss) if value is not None]
    return min(known, default=None)


def _sensitivity(found: Sequence[Measured]) -> float | None:
    """Mean over proxies of the mean over learning rates of loss - best loss (Wortsman et al. 2023)."""
    values = []
    for proxy in dict.fromkeys(one.trial.proxy for one in found):
        losses = [loss for loss in loss_by_lr(o for o in found if o.trial.proxy == proxy).values() if loss is not None]
        if losses:
            lowest = min(losses)
            values.append(fmean(loss - lowest for loss in losses))
    return fmean(values) if values else None


def _best_lr(found: Sequence[Measured]) -> tuple[float | None, list[float]]:
    """The learning rate whose every seed stayed stable with the lowest mean final loss, and those losses."""
    by_lr: defaultdict[float, list[float | None]] = defaultdict(list)
    for one in found:
        by_lr[one.trial.lr].append(None if one.figures.diverged else one.figures.final_loss)
    whole = {lr: [loss for loss in losses if loss is not None] for lr, losses in by_lr.items() if None not in losses}
    if not whole:
        return None, []
    lr = min(whole, key=lambda rate: (fmean(whole[rate]), rate))
    return lr, whole[lr]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0


def _or_last(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value
