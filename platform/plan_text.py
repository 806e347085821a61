"""A plan as a page for people (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from stormsail.platform.plan import RunPlan

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP = 1000
_MINUTE_S = 60.0
_HOUR_S = 3600.0


def plan_text(plan: RunPlan) -> str:
    """The whole plan, several lines without a trailing newline."""
    return "\n".join([*_figures(plan), *_listed("Ladder", plan.ladder), *_rest(plan)])


def _figures(plan: RunPlan) -> Iterator[str]:
    batch, memory, checkpoint = plan.batch, plan.memory, plan.checkpoint
    yield f"Run {plan.name}"
    yield f"  parameters      {'unknown' if plan.parameters is None else f'{plan.parameters:,}'}"
    yield f"  tokens          {batch.tokens_per_step:,} a step, {batch.tokens_total:,} in all"
    yield f"  micro-batches   {batch.micro_steps} of each worker in a step, {batch.padded_samples} samples of padding"
    if memory is not None:
        activations = "unknown" if memory.activations is None else size_text(memory.activations)
        parts = f"{size_text(memory.shards)} state, up to {size_text(memory.working)} gathered weights and buckets"
        yield f"  memory per rank about {size_text(memory.total)}: {parts}, {activations} activations"
        yield f"                  {size_text(memory.total_fp32)} during FP32 replay"
        keyframe = f", {size_text(memory.host_keyframe)} for the last keyframe" if memory.host_keyframe else ""
        yield f"  host memory     {size_text(memory.host_slots)} per rank for {memory.slots} snapshots{keyframe}"
    if checkpoint is not None:
        yield f"  checkpoint      {size_text(checkpoint.raw_bytes)}, about {size_text(checkpoint.stored_bytes)} stored"
        yield f"  upload          {duration_text(checkpoint.upload_s)} each, {checkpoint.saves} in the run"
        if checkpoint.log_bytes:
            kept = size_text(checkpoint.log_kept_bytes)
            yield f"  gradient log    {size_text(checkpoint.log_bytes)} a step, up to {kept} kept at a time"
        yield f"  store           up to {size_text(checkpoint.kept_bytes)} kept at a time"
    if plan.evaluation is not None:
        found = plan.evaluation
        passes = "" if found.micro_steps is None else f": {found.micro_steps} forward passes of each worker"
        samples = "all held-out samples" if found.samples is None else f"up to {found.samples} held-out samples"
        yield f"  evaluation      {found.count} in the run, of {samples}{passes}"


def _rest(plan: RunPlan) -> Iterator[str]:
    yield from _listed("Look again", plan.notes)
    yield from _listed("Not checked", plan.unchecked)


def _listed(title: str, lines: tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  - {line}" for line in lines)


def size_text(size_bytes: float) -> str:
    """Bytes for people, in powers of 1000: `1.2 GB`."""
    size = float(size_bytes)
    for unit in _UNITS[:-1]:
        if size < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} {_UNITS[-1]}"


def duration_text(seconds: float) -> str:
    """Seconds for people: `0.3 s`, `2.5 min`, `1.2 h`."""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    return f"{seconds / _MINUTE_S:.1f} min" if seconds < _HOUR_S else f"{seconds / _HOUR_S:.1f} h"
