"""Events in plain words: what a person reads while a run runs, and what `events` prints (pure)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from stormsail.platform.diagnosis import spoken
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import FaultKind
from stormsail.platform.vault.places import spell

_MB = 1_000_000
_GIB = 1 << 30
_HOSTS_SHOWN = 32


def clock(time_s: float) -> str:
    """Local time of day, to the second."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def tell(event: Event) -> str | None:
    """The event as one line without its time, or None for those that only machines care about."""
    teller = _TELLERS.get(event.kind)
    return teller(event, event.data) if teller else None


def is_quiet(event: Event) -> bool:
    """Whether the event is routine, so that a live view leaves it out."""
    return event.kind in _QUIET


def _decided(_event: Event, data: Mapping[str, Any]) -> str:
    return f"decision: {data['action']}"


def _kind(data: Mapping[str, Any]) -> str:
    """The kind of a fault; of one that is not finite also whether it was the loss, the gradient or the state."""
    kind = str(data["kind"])
    what = (data.get("evidence") or {}).get("what") if kind == FaultKind.NONFINITE else None
    return f"{kind} {what}" if what else kind


def _fault(event: Event, data: Mapping[str, Any]) -> str:
    where = f" on rank {data['rank']}" if data.get("rank", -1) >= 0 else ""
    evidence = data.get("evidence") or {}
    return f"fault: {_kind(data)}{where} at step {event.step}{_samples(evidence)}: {data.get('error') or 'no details'}"


def _samples(data: Mapping[str, Any]) -> str:
    """Where the step's batch lies in the data order; an older journal does not say."""
    if not data.get("samples"):
        return ""
    first, last = data["samples"]
    return f", samples {first} to {last} of the data order"


def _restored(event: Event, data: Mapping[str, Any]) -> str:
    logged = f" and {data['replayed']} steps of the gradient log" if data.get("replayed") else ""
    if data["ref_generation"] is None:
        return f"started again from the initial state{logged} in {data['precision']}"
    return (
        f"restored checkpoint {data['ref_generation']}/{data['ref_step']}{logged}: step {event.step}, "
        f"{data['tokens']:,} tokens seen, {data['precision']}, verified in {data['took_s']:.2f} s"
        + (f", from {spell(data['places'])}" if data.get("places") else "")
    )


def _formed(event: Event, data: Mapping[str, Any]) -> str:
    hosts = Counter(worker["host"] for worker in data.get("workers", ()))
    shown = ", ".join(host if count == 1 else f"{host} ({count})" for host, count in hosts.most_common(_HOSTS_SHOWN))
    more = f" and {len(hosts) - _HOSTS_SHOWN} more hosts" if len(hosts) > _HOSTS_SHOWN else ""
    where = f", on {shown}{more}" if hosts else ""
    return f"world of {data['world_size']} formed, generation {event.generation}{where}"


def _committed(event: Event, data: Mapping[str, Any]) -> str:
    return (
        f"checkpoint {data['generation']}/{event.step} committed: {data['bytes'] / _MB:.1f} MB "
        f"in {data['took_s']:.1f} s, digest {data['digest'][:16]}"
    )


def _caught_up(event: Event, _data: Mapping[str, Any]) -> str:
    return f"recovered: step {event.step} is new ground"


def _twin(event: Event, data: Mapping[str, Any]) -> str:
    verdict = "identical" if data["identical"] else "DIFFERENT"
    return (
        f"twin at step {event.step}: {verdict}: {data['digest']} (this run), {data['twin_digest']} (undisturbed twin)"
    )


def _evaluated(event: Event, data: Mapping[str, Any]) -> str:
    nothing = "no finite loss" if data["tokens"] else "no loss, as every token is masked out,"
    what = nothing if data["loss"] is None else f"loss {data['loss']:.4f}"
    lowest = ", the lowest so far" if data["lowest"] else ""
    unsaved = f"; no checkpoint holds {data['unsaved']}" if data["unsaved"] else ""
    return f"evaluated at step {event.step}: {what} over {data['samples']} samples in {data['took_s']:.1f} s{lowest}{unsaved}"


def _on_rank(rank: int) -> str:
    return f"on rank {rank} " if rank >= 0 else ""


_TELLERS: dict[str, Callable[[Event, Mapping[str, Any]], str]] = {
    "run.started": lambda _e, _d: "run started",
    "run.continued": lambda _e, d: "run continued" + (f"; changed: {'; '.join(d['changes'])}" if d["changes"] else ""),
    "extensions.building": lambda _e, d: f"building DeepSpeed's C++ extensions once, up to {d['limit_s']:.0f} s",
    "extensions.ready": lambda _e, _d: "extensions are ready",
    "resources.waiting": lambda _e, d: f"waiting for free resources until {clock(d['until_s'])}: {d['short']}",
    "resources.lost": lambda _e, d: f"the room for the workers was gone when they were to start: {d['why']}",
    "resources.ready": lambda _e, _d: "resources are there",
    "attempt.started": lambda _e, d: f"attempt {d['attempt']}: starting {d['workers']} workers",
    "world.formed": _formed,
    "state.restored": _restored,
    "fault.detected": _fault,
    "hang.suspected": lambda _e, d: f"hang: {d['reason']}; gathering evidence before anything is ended",
    "hang.evidence": lambda _e, d: f"evidence: {d['finding']}; {len(d['keys'])} files in {d['folder']}",
    "hang.shadowed": lambda _e, d: f"shadow mode: the attempt is not ended, though {d['reason']}",
    "ladder.shadowed": lambda e, d: (
        f"shadow mode: {_kind(d)} at step {e.step}{_samples(d.get('evidence') or {})}: {d['error']}; nothing is done, it would have been: {d['action']}"
    ),
    "hang.cleared": lambda e, _d: f"the ranks have moved again at step {e.step}: nothing is ended",
    "diagnosis.begun": lambda e, d: (
        f"diagnosis: steps {d['first']} to {d['last']} once more, from step {e.step}, at most {d['budget_steps']} steps"
    ),
    "diagnosis.skipped": lambda _e, d: f"no diagnosis: {d['why']}",
    "diagnosis.made": lambda e, d: (
        f"diagnosis: {spoken(d['cause'], d['confidence'])} from step {e.step}: {'; '.join(d['evidence'])}"
    ),
    "hardware.suspected": lambda _e, d: f"hardware is suspected: {d['why']}; {d['todo']}",
    "ladder.decided": _decided,
    "recovery.first_step": lambda e, _d: f"training again at step {e.step}",
    "recovery.caught_up": _caught_up,
    "replay.finished": lambda e, d: (
        f"FP32 window ended at step {e.step} (computed in {d['window_dtype']}), back to {d['precision']}; {d['verdict']}"
    ),
    "episode.closed": lambda e, d: f"episode {d['episode']} closed at step {e.step}: healthy again",
    "evaluation.begun": lambda e, _d: f"evaluating after step {e.step}",
    "evaluation.finished": _evaluated,
    "checkpoint.committed": _committed,
    "checkpoint.good": lambda e, d: f"checkpoint {d['generation']}/{e.step} is known good",
    "checkpoint.missed": lambda e, d: f"checkpoint at step {e.step} was not saved: {d['why']}",
    "checkpoint.in_full": lambda e, d: f"rank {d['rank']} wrote step {e.step} in full: {d['why']}",
    "checkpoint.alert": lambda _e, d: f"ALERT: {d['missed']} checkpoints in a row were not saved: {d['why']}",
    "checkpoint.corrupt": lambda e, d: f"checkpoint {d['generation']}/{e.step} is damaged: {d['problem']}",
    "place.damaged": lambda e, d: (
        f"a copy of checkpoint {d['ref_generation']}/{e.step} was put aside, the next place is tried: {d['why']}"
    ),
    "journal.mended": lambda _e, d: f"damaged in the store and written once more: {', '.join(d['objects'])}",
    "series.damaged": lambda _e, d: f"{d['rows']} metric rows cannot be read, and are left out: {d['first']}",
    "format.rewritten": lambda _e, d: f"the format record was damaged and is written anew: {d['why']}",
    "vault.opened": lambda _e, d: f"vault of {d['budget_bytes'] / _GIB:.1f} GiB on {d['node']}, {d['buddy']}",
    "vault.restarted": lambda _e, d: f"the vault on {d['node']} was restarted; it holds {d['images']} snapshots",
    "vault.uncopied": lambda _e, d: (
        f"the vault on {d['node']} could not copy to {d['buddy']}: {d['why']}; what it holds would be lost with its node"
    ),
    "vault.lost": lambda _e, d: f"the vault on {d['node']} is gone: {d['why']}; training goes on",
    "snapshot.unpinned": lambda _e, d: f"rank {d['rank']} copies its snapshots to plain memory, slower: {d['why']}",
    "vault.unused": lambda _e, d: f"rank {d['rank']} keeps its snapshots in its own memory: {d['why']}",
    "checkpoint.deleted": lambda _e, d: f"retention removed {len(d['refs'])} checkpoints",
    "log.found": lambda e, d: (
        f"the gradient log leads from step {d['from_step']} to step {e.step}"
        + (f"; {d['why_not_further']}" if d["why_not_further"] else "")
    ),
    "log.replayed": lambda e, d: (
        f"took {(e.step or 0) - d['from_step']} steps from the gradient log, to step {e.step}, in {d['took_s']:.2f} s"
    ),
    "log.refused": lambda e, d: (
        f"the gradient log is not used from step {e.step} on, its steps are computed: {d['problem']}"
    ),
    "log.broken": lambda e, d: f"rank {d['rank']} did not log step {e.step}, nor those up to the next save: {d['why']}",
    "update.dropped": lambda e, d: (
        f"update of step {e.step} dropped: {d['count']} non-finite gradient values, "
        f"first {_on_rank(d['rank'])}in {d['first_parameter'] or 'the loss'}{_samples(d)}"
    ),
    "step.empty": lambda e, _d: f"step {e.step} had no real token; weights unchanged",
    "spike.watch": lambda e, d: f"watch: {d['reason']} (step {e.step}{_samples(d)})",
    "forecast.watch": lambda e, d: (
        f"watch: the loss of step {e.step} left the {d['forecast']} forecast, {d['z']:.1f} sigma above (limit {d['limit']:g})"
    ),
    "forecast.failed": lambda _e, d: f"the loss forecast broke and is off from here on: {d['error']}",
    "rank.slow": lambda e, d: (
        f"rank {d['rank']} on {d['host'] or 'an unknown host'} has been slow up to step {e.step}: its own work takes "
        f"{d['ratio']:.2f} x that of the others"
    ),
    "rank.stalled": lambda e, d: (
        f"rank {d['rank']} on {d['host'] or 'an unknown host'} stalled once, for {d['seconds']:.1f} s at step {e.step}"
    ),
    "throughput.collapsed": lambda e, d: (
        f"the run has become slow at step {e.step}: {d['tokens_per_s']:,.0f} tokens/s, usual are "
        f"{d['usual_tokens_per_s']:,.0f}"
    ),
    "throughput.recovered": lambda e, d: (
        f"the run is as fast as usual again at step {e.step}: {d['tokens_per_s']:,.0f} tokens/s"
    ),
    "drill.fired": lambda e, d: f"drill: {d['kind']} at step {e.step}",
    "drill.twin": _twin,
    "stop.requested": lambda _e, d: f"stop requested: {d['reason']}",
    "checkpoint.folded": lambda e, d: (
        f"checkpoint {d['generation']}/{e.step} was written once more as a keyframe: {d['bytes'] / _MB:.1f} MB"
    ),
    "checkpoint.fold_damaged": lambda e, d: (
        f"what checkpoint {d['generation']}/{e.step} was folded into is damaged, so its differences stay: {d['why']}"
    ),
    "checkpoint.fold_failed": lambda e, d: f"checkpoint {d['generation']}/{e.step} could not be folded: {d['why']}",
    "checkpoint.swept": lambda _e, d: f"removed {d['objects']} objects of saves that never finished",
    "checkpoint.retention_failed": lambda _e, d: f"old checkpoints could not be removed yet: {d['why']}",
    "alert.sent": lambda _e, d: f"alert sent by {d['channel']}: {d['subject']}",
    "alert.delayed": lambda _e, d: f"alerts by {d['channel']} are held up ({d['why']}); they are tried again",
    "alert.failed": lambda _e, d: f"alert by {d['channel']} could not be sent: {d['why']}: {d['subject']}",
    "alert.unusable": lambda _e, d: f"alerts by {d['channel']} cannot be sent at all: {d['why']}",
    "store.away": lambda _e, d: f"the store is away ({d['why']}); training goes on, everything is kept and sent later",
    "store.back": lambda _e, d: f"the store is back after {d['for_s']:.0f} s",
    "tracking.away": lambda _e, d: f"MLflow is away ({d['error']}); training goes on, rows are kept and sent later",
    "tracking.back": lambda _e, _d: "MLflow is back",
    "tracking.incomplete": lambda _e, _d: "MLflow did not get everything; the next start of this run sends the rest",
    "run.finished": lambda e, d: f"finished at step {e.step}, digest {d['digest']}",
    "run.stopped": lambda e, d: f"stopped at step {e.step}, saved is step {d.get('saved_step', e.step)}: {d['reason']}",
    "run.unsaved": lambda e, _d: f"all steps are done, but the state of step {e.step} could not be saved",
    "run.exhausted": lambda _e, d: f"needs a person: {d['reason']}",
    "run.failed": lambda _e, d: f"failed: {d['error']}",
}
_QUIET = {
    "evaluation.begun",
    "checkpoint.committed",
    "checkpoint.good",
    "checkpoint.deleted",
    "spike.watch",
    "alert.sent",
    "forecast.watch",
    "rank.stalled",
    "generation.created",
    "recovery.first_step",
}
