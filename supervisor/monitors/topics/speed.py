"""Monitored items about speed; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import Row, RunView, each, field, named, now, over_step, rolling


def _rate(row: Row) -> float | None:
    seconds = field("step_s")(row)
    return float(row["tokens"]) / seconds if seconds else None


def _short_to_long(values: Sequence[float]) -> float:
    """Median of the last 20 against the median of all."""
    usual = median(values)
    return median(values[-20:]) / usual if usual else 1.0


def _jitter(values: Sequence[float]) -> float:
    ordered = sorted(values)
    usual = median(ordered)
    return ordered[int(0.95 * (len(ordered) - 1))] / usual if usual else 1.0


def _since_step(view: RunView) -> float | None:
    """An evaluation within its limit is no standing still, and what it took does not count afterwards."""
    if view.record.outcome or not view.rows:
        return 0.0 if view.rows else None
    doing = view.record.evaluating
    if doing is not None and view.now_s - doing.since_s <= view.config.eval.timeout_s:
        return 0.0
    evaluated_s = max((event.time_s for event in view.of_kind("evaluation.finished")), default=-math.inf)
    return max(0.0, view.now_s - max(float(view.rows[-1]["time_s"]), evaluated_s))


SPEED = (
    Item(
        "speed.tokens_per_s",
        "x usual",
        "rows: tokens, step_s",
        "median rate of the last 20 steps against all looked at",
        Limits(0.7, 0.5, below=True),
        "find the slow host, network or data source",
        "throughput",
        rolling(_rate, _short_to_long, window=400, least=40),
    ),
    Item(
        "speed.step_s",
        "x usual",
        "rows: step_s",
        "median step time of the last 20 steps against all looked at",
        Limits(1.5, 2.0),
        "as for speed.tokens_per_s",
        "throughput",
        rolling(field("step_s"), _short_to_long, window=400, least=40),
    ),
    Item(
        "speed.jitter",
        "p95 / median",
        "rows: step_s",
        "how uneven the last 100 steps were",
        Limits(2.5, 6.0),
        "look for a noisy neighbour, a slow disk, checkpoints that are too frequent",
        "throughput",
        rolling(field("step_s"), _jitter, window=100, least=20),
    ),
    Item(
        "speed.since_step_s",
        "s",
        "rows: time_s",
        "seconds since the last finished step or evaluation; 0 while one is within its limit",
        Limits(60.0, 300.0),
        "`stormsail events RUN` says what it waits for",
        "hang",
        now(_since_step),
    ),
    Item(
        "speed.compute_share",
        "share of the step",
        "rows: values time.compute_s",
        "forward and backward of the slowest rank",
        Limits(0.5, 0.2, below=True),
        "the rest is waiting: see comm, data and update",
        "throughput",
        each(over_step("time.compute_s")),
    ),
    Item(
        "speed.comm_share",
        "share of the step",
        "rows: values time.comm_s",
        "waiting in collectives of forward and backward",
        Limits(0.4, 0.7),
        "slow network, or one slow rank: see speed.slowest_ratio",
        "throughput",
        each(over_step("time.comm_s")),
    ),
    Item(
        "speed.wait_share",
        "share of the step",
        "rows: values time.wait_s",
        "waiting for the slowest rank at the end of the step",
        Limits(0.2, 0.5),
        "a straggler: see speed.slowest_ratio",
        "straggler",
        each(over_step("time.wait_s")),
    ),
    Item(
        "speed.update_share",
        "share of the step",
        "rows: values time.update_s",
        "the optimizer's step",
        Limits(0.5, 0.8),
        "offloaded optimizer or too few threads",
        "throughput",
        each(over_step("time.update_s")),
    ),
    Item(
        "speed.vitals_share",
        "share of the step",
        "rows: values sampling.share",
        "what watching costs",
        Limits(0.02, 0.05),
        "the governor thins out samples by itself",
        "throughput",
        each(named("sampling.share")),
    ),
    Item(
        "speed.slowest_ratio",
        "x median of the others",
        "rows: values time.slowest_ratio",
        "how much longer the slowest rank computes",
        Limits(1.3, 2.0),
        "if it is always the same rank, take its host out",
        "straggler",
        each(named("time.slowest_ratio")),
    ),
    Item(
        "speed.rank_outlier",
        "robust sigma",
        "rows: values rank.outlier_z",
        "a rank that departs from its own share of loss or norm",
        Limits(6.0, 12.0),
        "silent corruption: replay elsewhere, take the host out",
        "rank-outlier",
        each(named("rank.outlier_z")),
    ),
)
