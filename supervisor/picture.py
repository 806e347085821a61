"""The picture of a run: its loss, what broke it, and where it healed; one SVG, made from the run's storage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stormsail.supervisor.report.model import IncidentEntry, Report

_KINDS = {
    "process": "process lost",
    "hang": "hang",
    "user_code": "user code failed",
    "spike": "loss spike",
    "nonfinite": "overflow",
    "resume_fault": "resume fault",
}
_LIVE, _LOST, _FP32, _INK = "#1f6feb", "#d1242f", "#9a6700", "#57606a"


def draw(report: Report, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw loss and learning rate over steps; steps that were thrown away stay visible, in red.

    Args:
        report: Of the same run.
        rows: All finished steps, in the order in which they were computed.
        path: Where the picture goes; its ending says the format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "stormsail"}
    ):
        figure, (loss, rate) = plt.subplots(
            2, 1, sharex=True, figsize=(9, 4.4), height_ratios=(4, 1), layout="constrained"
        )
        _draw_loss(loss, rows)
        _draw_incidents(loss, report.incidents)
        _draw_rate(rate, rows)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def final_line(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """For each step the row of its last computation: the line that the run went on from (pure)."""
    line: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        step = int(row["step"])
        if step in line:
            line = {known: held for known, held in line.items() if known < step}
        line[step] = row
    return line


def _draw_loss(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    line = final_line(rows)
    kept = {id(row) for row in line.values()}
    lost = [(row["step"], row["loss"]) for row in rows if id(row) not in kept and math.isfinite(row["loss"])]
    axes.plot(list(line), [row["loss"] for row in line.values()], color=_LIVE, lw=1.3, label="the run")
    if lost:
        axes.scatter(*zip(*lost, strict=True), s=5, color=_LOST, alpha=0.7, lw=0, label="thrown away")
    fp32 = [step for step, row in line.items() if row["precision"] == "fp32"]
    if fp32:
        axes.axvspan(min(fp32), max(fp32), color=_FP32, alpha=0.12, lw=0, label="replayed in FP32")
    axes.set_ylabel("loss (nats)")
    axes.legend(frameon=False, loc="upper right", ncols=3)


def _draw_incidents(axes: Any, incidents: Sequence[IncidentEntry]) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    for incident in incidents:
        if incident.step is None:
            continue
        tier = incident.tier_name.replace("_", " ").replace("fp32", "FP32")
        axes.axvline(incident.step, color=_INK, lw=0.8, ls=":")
        axes.annotate(
            f"{_KINDS.get(incident.kind, incident.kind)}\ntier {incident.tier}: {tier}",
            (incident.step, 0.84),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            color=_INK,
            fontsize=8,
        )


def _draw_rate(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    line = final_line(rows)
    axes.plot(list(line), [row["lr"] * 1e3 for row in line.values()], color=_LIVE, lw=1.0)
    axes.set_ylabel("LR x 1000")
    axes.set_xlabel("step")
