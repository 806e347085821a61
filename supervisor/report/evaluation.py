"""What became of the evaluations on held-out samples, and the time that they took; pure."""

from __future__ import annotations

from collections.abc import Sequence

from stormsail.platform.checkpoint.evaluated import evaluated_in, lowest
from stormsail.supervisor.report.fields import EventLike, real, step_of, whole
from stormsail.supervisor.report.lineage import Lineage
from stormsail.supervisor.report.model import EvaluationEntry
from stormsail.supervisor.report.timeline import Span

_KIND = "evaluation.finished"


def evaluation_entry(events: Sequence[EventLike], lineage: Lineage) -> EvaluationEntry | None:
    """Sum the final line's evaluations up; None where there was none.

    Args:
        events: The journal.
        lineage: Says what belongs to that line.
    """
    all_lines = [event for event in events if event.kind == _KIND]
    found = [event for event in all_lines if lineage.holds(*_state(event))]
    if not found:
        return None
    finite = [item for item in (evaluated_in(event.data, step_of(event)) for event in found) if item is not None]
    best = lowest(finite)
    return EvaluationEntry(
        count=len(found),
        last_step=step_of(found[-1]),
        last_loss=real(found[-1].data, "loss"),
        best_step=None if best is None else best.step,
        best_loss=None if best is None else best.loss,
        best_kept=best is not None and (best.generation, best.step) in _kept(events),
        best_damaged=best is not None and (best.generation, best.step) in _damaged(events),
        thrown_away=len(all_lines) - len(found),
        other_samples=0 if best is None else sum(item.eval_set != best.eval_set for item in finite),
    )


def spans(events: Sequence[EventLike]) -> list[Span]:
    """When the run was evaluating, by rank 0's clock, as steps are."""
    found = []
    for event in events:
        ended_s = real(event.data, "at_s") if event.kind == _KIND else None
        if ended_s is not None:
            found.append(Span("evaluate", ended_s - (real(event.data, "took_s") or 0.0), ended_s))
    return found


def _state(event: EventLike) -> tuple[int, int]:
    """Generation and step of the state that an event is about."""
    generation = whole(event.data, "generation")
    return event.generation if generation is None else generation, step_of(event) or 0


def _damaged(events: Sequence[EventLike]) -> set[tuple[int, int]]:
    return {_state(event) for event in events if event.kind == "checkpoint.corrupt"}


def _kept(events: Sequence[EventLike]) -> set[tuple[int, int]]:
    """The checkpoints that were committed and not removed."""
    kept: set[tuple[int, int]] = set()
    for event in events:
        if event.kind == "checkpoint.committed":
            kept.add(_state(event))
        elif event.kind == "checkpoint.deleted":
            refs = event.data.get("refs")
            kept -= {tuple(ref) for ref in refs} if isinstance(refs, list | tuple) else set()
    return kept
