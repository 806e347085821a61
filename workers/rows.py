"""From a step's vitals to the named values of its row; the names are those of `platform/step_values.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stormsail.workers.detect.rules.robust_spike import RobustSpike, RobustSpikeState
from stormsail.workers.detect.stragglers import Slowness
from stormsail.workers.detect.verdict import Verdict
from stormsail.workers.sampling import Governor
from stormsail.workers.vitals import Floats, Vitals, token_correction


def every_step(
    seen: Vitals, *, verdict: Verdict, slowness: Slowness, governor: Governor, skipped: int, clip: float, clipped: float
) -> dict[str, float]:
    """The values that every row has.

    Args:
        seen: The step's vitals.
        verdict: What was found.
        slowness: What was found about slow ranks.
        governor: After this step.
        skipped: Steps without an update up to here.
        clip: What the gradient was multiplied by to keep the limit; 1 is unclipped.
        clipped: Share of the last updates that were clipped.
    """
    values = {
        "clip.factor": clip,
        "clip.share": clipped,
        "nonfinite.gradients": float(seen.nonfinite_gradients),
        "updates.skipped": float(skipped),
        "updates.overflowed": float(seen.ints("overflowed").sum()),
        "loss_scale": float(seen.floats("loss_scale").min()),
        "time.data_s": float(seen.floats("data_s").max()),
        "time.compute_s": float(seen.floats("compute_s").max()),
        "time.comm_s": float(seen.floats("comm_s").max()),
        "time.wait_s": float(seen.waits_s.max()),
        "time.update_s": float(seen.floats("update_s").max()),
        "time.vitals_s": seen.watching_s,
        "sampling.every_steps": float(governor.interval),
        "sampling.share": governor.share,
    }
    if seen.nonfinite_gradients or seen.nonfinite_state:
        values["nonfinite.state"] = float(seen.nonfinite_state)
    losses = seen.rank_losses[np.isfinite(seen.rank_losses)]
    if len(losses):
        values["loss.rank_spread"] = float(losses.max() - losses.min())
    if slowness.rank >= 0:
        values |= {"time.slowest_rank": float(slowness.rank), "time.slowest_ratio": slowness.ratio}
    if verdict.rank.rank >= 0:
        values |= {"rank.outlier": float(verdict.rank.rank), "rank.outlier_z": verdict.rank.z}
    return values | {f"detector.{name}": finding.severity for name, finding in verdict.findings}


def layer_norms(seen: Vitals, groups: Sequence[str]) -> dict[str, float]:
    """The gradient norm of each layer group."""
    return {f"norm.{group}": norm for group, norm in zip(groups, seen.group_norms, strict=True)}


def sampled(seen: Vitals, groups: Sequence[str], elements: Sequence[float]) -> dict[str, float]:
    """What only a sampled step has; what the model, the optimizer or the precision lacks is left out.

    Args:
        seen: The step's vitals.
        groups: Names of the layer groups.
        elements: Parameters in each of them.
    """
    values = _largest("activation.max", seen.grouped("activations"), groups)
    values |= _largest("attention.max_logit", seen.grouped("attention"), groups)
    values |= _update_rms(seen, groups, np.array(elements))
    if (seen.ints("correct") >= 0).all() and seen.tokens:
        values["accuracy.tokens"] = float(seen.ints("correct").sum()) / seen.tokens
    if (seen.ints("zeros") >= 0).all():
        values["norm.zero_share"] = float(seen.ints("zeros").sum()) / max(sum(elements), 1.0)
    return values


def by_rank(seen: Vitals) -> dict[str, tuple[float, ...]]:
    """One number for each rank, by the names of `RANK_VALUES`."""
    figures: dict[str, Floats] = {
        "loss": seen.rank_losses,
        "shard_norm": seen.shard_norms * token_correction(seen.tokens, seen.nominal_tokens),
        "data_s": seen.floats("data_s"),
        "compute_s": seen.floats("compute_s"),
        "comm_s": seen.floats("comm_s"),
        "wait_s": seen.waits_s,
    }
    return {name: tuple(values.tolist()) for name, values in figures.items()}


def spike_values(rule: RobustSpike, state: RobustSpikeState, seen: Vitals) -> dict[str, float]:
    """How far loss and norm lie from the spike rule's baselines, before this step was learnt."""
    if not (math.isfinite(seen.loss) and math.isfinite(seen.grad_norm)):
        return {}
    loss_z, norm_ratio = rule.distance(state, seen.loss, seen.grad_norm)
    return {"spike.loss_z": loss_z, "spike.norm_ratio": norm_ratio}


def _largest(name: str, table: Floats, groups: Sequence[str]) -> dict[str, float]:
    """The largest over the ranks, of each group and of all; groups that no rank has seen are left out."""
    there = np.flatnonzero(~np.isnan(table).all(axis=0))
    if not len(there):
        return {}
    largest = np.nanmax(table[:, there], axis=0)
    names = [groups[int(index)] for index in there]
    values = {f"{name}.{group}": float(value) for group, value in zip(names, largest, strict=True)}
    return {name: float(largest.max()), **values}


def _update_rms(seen: Vitals, groups: Sequence[str], elements: Floats) -> dict[str, float]:
    squares = seen.grouped("update_squares")
    if np.isnan(squares).any():
        return {}
    total = math.sqrt(float(squares.sum()) / float(elements.sum()))
    each = np.sqrt(squares.sum(axis=0) / elements)
    values = {f"update.rms.{group}": float(value) for group, value in zip(groups, each, strict=True)}
    return {"update.rms": total, **values}
