"""From the rows that a run has reported to the trace that a diagnosis reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stormsail.platform.diagnosis import Trace, TraceRow
from stormsail.platform.messages import Incident, StepRow
from stormsail.workers.detect.signs import TRACE_STEPS

_NORM, _ZEROS = "norm.", "norm.zero_share"
_UPDATE = "update.rms"
_NONFINITE = "nonfinite.gradients"


def trace_of(rows: Sequence[StepRow], incident: Incident) -> Trace:
    """The steps before an incident, and the incident's own.

    Args:
        rows: Finished steps of the live line, by step.
        incident: What rank 0 reported; its step has no row, and none is made up where the evidence has no loss.
    """
    last = [row for row in rows if row.step < incident.step][-TRACE_STEPS:]
    names = next((found for row in reversed(last) if (found := _layers(row))), ())
    generations = [None, *(row.generation for row in last)]
    traced = [
        _trace_row(row, names, restored=before is not None and before != row.generation)
        for before, row in zip(generations, last, strict=False)
    ]
    if "loss" not in incident.evidence:
        return Trace(names, tuple(traced))
    begun = bool(last) and last[-1].generation != incident.generation
    return Trace(names, (*traced, _own_row(incident, restored=begun)))


def _layers(row: StepRow) -> tuple[str, ...]:
    """Names of the layer groups whose norm the row has; not every row is sampled."""
    return tuple(name.removeprefix(_NORM) for name in row.values if name.startswith(_NORM) and name != _ZEROS)


def _trace_row(row: StepRow, names: tuple[str, ...], *, restored: bool) -> TraceRow:
    dropped = row.outcome == "dropped" or not (math.isfinite(row.loss) and math.isfinite(row.grad_norm))
    return TraceRow(
        step=row.step,
        loss=row.loss,
        grad_norm=row.grad_norm,
        groups=tuple(row.values[_NORM + name] for name in names) if _layers(row) == names else (),
        update_rms=row.values.get(_UPDATE, 0.0),
        nonfinite=int(row.values.get(_NONFINITE, float(dropped))),
        rank_losses=row.ranks.get("loss", ()),
        lr=row.lr,
        restored=restored,
        zero_share=row.values.get(_ZEROS, -1.0),
        batch=row.batch,
    )


def _own_row(incident: Incident, *, restored: bool) -> TraceRow:
    evidence = incident.evidence
    bad, rank, batch = (evidence.get(name) for name in ("nonfinite_gradients", "rank", "batch"))
    return TraceRow(
        step=incident.step,
        loss=_number(evidence.get("loss")),
        grad_norm=_number(evidence.get("grad_norm")),
        nonfinite=bad if isinstance(bad, int) else 0,
        bad_rank=rank if isinstance(rank, int) else -1,
        restored=restored,
        batch=batch if isinstance(batch, int) else 0,
    )


def _number(value: object) -> float:
    """A figure of the evidence; one that JSON has no number for stands there by its name."""
    return float(value) if isinstance(value, int | float | str) else math.nan
