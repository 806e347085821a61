"""What a run will need and do, worked out from its configuration alone (pure): no torch, Ray, network or GPU.

Memory is that of one rank under ZeRO-3 as the workers configure it. What cannot be known from the
configuration is listed, never guessed in silence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stormsail.platform.checkpoint.interval import LOG_BYTES_PER_PARAMETER
from stormsail.platform.config.builtin_args import PREFIX, TransformerArgs
from stormsail.platform.config.model import RunConfig

# A checkpoint holds fp32 master weights and two fp32 moments; bf16 weights derive from them.
RAW_BYTES_PER_PARAMETER = 12.0
# Masters and second moments of the last keyframe, which differences build on.
KEYFRAME_WORDS_BYTES_PER_PARAMETER = 8.0
# Where a node has no vault, a rank takes its snapshots into two slots of its own (`workers/places.py`).
_MOST_PRIVATE = 2
# What the ladder may need beside the newest good checkpoints: the good one before, an old enough one, the newest.
_KEPT_FOR_THE_LADDER = 3
# DeepSpeed's defaults, in elements; the engine asks for no larger bucket than the model is.
_MAX_LIVE_PARAMETERS = 1_000_000_000
_REDUCE_BUCKET = 500_000_000


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How one global batch is cut.

    Attributes:
        micro_steps: Forward and backward passes of each worker in one step.
        padded_samples: Samples of weight 0 that fill the last pass, so that all workers run equally many.
        padded_share: Their share of the compute.
        tokens_per_step: Real tokens in one step.
        tokens_total: Real tokens in the whole run.
    """

    micro_steps: int
    padded_samples: int
    padded_share: float
    tokens_per_step: int
    tokens_total: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that one rank needs on its device, by what they are for, and in host memory for its saves.

    Attributes:
        shards: This rank's part of weights, gradients, masters and moments, in the run's precision.
        working: Weights gathered for the layers in use, and the bucket that gradients are reduced in; upper limits.
        activations: Estimate for one micro-batch, or None where the model is the user's own.
        total: Sum of the above.
        total_fp32: The same during the ladder's FP32 replay.
        slots: How many snapshots it has room for.
        host_slots: Host memory for these snapshots, shared where the node has a vault; held from the first save on.
        host_keyframe: Host memory for the last keyframe; 0 where no differences are written.
    """

    shards: int
    working: int
    activations: int | None
    total: int
    total_fp32: int
    slots: int
    host_slots: int
    host_keyframe: int


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What saving costs.

    Attributes:
        raw_bytes: State of all ranks together.
        stored_bytes: What is expected on the store, compressed.
        upload_s: Seconds for one upload at the given bandwidth, all ranks together.
        kept_bytes: What the store holds at most at a time, once retention works.
        saves: Checkpoints in the whole run.
        log_bytes: What the gradient log takes in each step, all ranks together; 0 without one.
        log_kept_bytes: What of it the store holds at most at a time.
    """

    raw_bytes: int
    stored_bytes: int
    upload_s: float
    kept_bytes: int
    saves: int
    log_bytes: int = 0
    log_kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What evaluating on held-out samples takes.

    Attributes:
        count: Evaluations in the whole run.
        samples: Samples of each at most, as far as so many are held out; None for all of them.
        micro_steps: Forward passes of each worker in one evaluation, at most; None likewise.
    """

    count: int
    samples: int | None
    micro_steps: int | None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The whole plan.

    Attributes:
        name: The run.
        parameters: Trained elements, or None where only the user's own code knows.
        batch: How a batch is cut.
        memory: Per rank, or None without the number of parameters.
        checkpoint: What saving costs, or None likewise.
        evaluation: What evaluating takes, or None for a run that is never evaluated.
        ladder: What the ladder will do, in plain words.
        notes: What deserves a second look.
        unchecked: What could not be checked here.
    """

    name: str
    parameters: int | None
    batch: BatchPlan
    memory: MemoryPlan | None
    checkpoint: CheckpointPlan | None
    evaluation: EvaluationPlan | None
    ladder: tuple[str, ...]
    notes: tuple[str, ...]
    unchecked: tuple[str, ...]


def plan_run(config: RunConfig, *, bandwidth_mb_s: float, parameters: int | None = None) -> RunPlan:
    """Work the plan out.

    Args:
        config: The run.
        bandwidth_mb_s: What all workers together reach to the store, in 10^6 bytes per second; above 0.
        parameters: Trained elements, for a model of the user's own; a built-in knows its own.
    """
    known = _built_in_model(config)
    count = known.parameter_count() if known is not None else parameters
    batch = batch_plan(config)
    checkpoint = None if count is None else _checkpoint_plan(config, count, bandwidth_mb_s)
    return RunPlan(
        name=config.name,
        parameters=count,
        batch=batch,
        memory=None if count is None else _memory_plan(config, count, known),
        checkpoint=checkpoint,
        evaluation=_evaluation_plan(config),
        ladder=ladder_in_words(config),
        notes=tuple(_notes(config, batch, checkpoint)),
        unchecked=tuple(_unchecked(config, known, bandwidth_mb_s, count)),
    )


def batch_plan(config: RunConfig) -> BatchPlan:
    """Cut the global batch: every worker runs equally many micro-batches, the last ones filled up with padding."""
    train, per_pass = config.train, config.train.micro_batch * config.cluster.workers
    micro_steps = math.ceil(train.global_batch / per_pass)
    padded = micro_steps * per_pass - train.global_batch
    tokens = train.global_batch * config.data.sequence_tokens
    return BatchPlan(
        micro_steps=micro_steps,
        padded_samples=padded,
        padded_share=padded / (micro_steps * per_pass),
        tokens_per_step=tokens,
        tokens_total=tokens * train.steps,
    )


def ladder_in_words(config: RunConfig) -> tuple[str, ...]:
    """The ladder's limits, as sentences."""
    dropped = (
        f"{config.nonfinite.patience} dropped updates in a row open an incident, and so does more than "
        f"{config.nonfinite.share:.0%} of all for long; none is ever applied."
    )
    if config.ladder.on_anomaly == "stop":
        return (
            _lost_process(config),
            "An incident of bad numbers stops the run for a person (ladder.on_anomaly).",
            dropped,
        )
    ladder, rollback, fp32, lr = config.ladder, config.rollback, config.fp32, config.lr
    cuts = math.floor(math.log(lr.floor) / math.log(rollback.lr_factor) + 1e-9) if lr.floor > 0 else None
    times = "any number of times" if cuts is None else f"at most {cuts} times before the floor of {lr.floor:g}"
    return (
        _lost_process(config),
        "Tier 1 resumes from the newest good checkpoint before the trouble.",
        (
            f"Tier 2 goes back at least {rollback.min_steps} steps before the trouble and multiplies the learning rate by "
            f"{rollback.lr_factor:g}, {times}; a cut is held {lr.hold_steps} steps and returns over {lr.ramp_steps}."
        ),
        f"Tier 3 replays from {fp32.window_steps} steps before the trouble to {fp32.margin_steps} past it in FP32.",
        f"Trouble within {ladder.probation_steps} steps of a repair counts as the same and climbs one tier.",
        (
            f"The run stops for a person after tier 3 fails, after {ladder.episodes_per_hour} episodes in an hour, or "
            f"{ladder.episodes_total} in all; {ladder.reset_after_steps} healthy steps reset both counts."
        ),
        dropped,
    )


def _lost_process(config: RunConfig) -> str:
    steps = config.checkpoint.interval
    if config.checkpoint.gradient_log == "off":
        return f"A lost process or node costs up to {steps} steps: those since the newest committed checkpoint."
    return (
        "A lost process or node costs the step that is under way: those before are taken from the gradient log, "
        f"up to {steps} of them; where it is damaged or broken off, they are computed again."
    )


def _built_in_model(config: RunConfig) -> TransformerArgs | None:
    if config.model.factory != f"{PREFIX}transformer":
        return None
    return TransformerArgs.model_validate(config.model.args)


def _memory_plan(config: RunConfig, parameters: int, model: TransformerArgs | None) -> MemoryPlan:
    share = math.ceil(parameters / config.cluster.workers)
    width = 2 if config.train.precision == "bf16" else 4
    activations = None if model is None else _activation_bytes(config, model, width)
    activations_fp32 = 0 if model is None else _activation_bytes(config, model, 4)
    shards, working = _shard_bytes(share, width), _working_bytes(parameters, width)
    checkpoint = config.checkpoint
    slots = min(checkpoint.ring, _MOST_PRIVATE) if checkpoint.vault_gib == 0 else checkpoint.ring
    return MemoryPlan(
        shards=shards,
        working=working,
        activations=activations,
        total=shards + working + (activations or 0),
        total_fp32=_shard_bytes(share, 4) + _working_bytes(parameters, 4) + activations_fp32,
        slots=slots,
        host_slots=int(slots * share * RAW_BYTES_PER_PARAMETER),
        host_keyframe=int(share * KEYFRAME_WORDS_BYTES_PER_PARAMETER) if checkpoint.writes_differences else 0,
    )


def _shard_bytes(share: int, width: int) -> int:
    # Weights and gradients in the compute precision; the fp32 sum of gradients, master and two moments.
    return share * (2 * width + 4 + 4 + 8)


def _working_bytes(parameters: int, width: int) -> int:
    return width * (min(parameters, _MAX_LIVE_PARAMETERS) + min(parameters, _REDUCE_BUCKET))


def _activation_bytes(config: RunConfig, model: TransformerArgs, width: int) -> int:
    """What backward needs of one micro-batch, with attention that does not keep its score matrix."""
    tokens = config.train.micro_batch * config.data.sequence_tokens
    # Each block keeps, per token: input, two normed inputs, q, k, v, attention's output and its projection's
    # input (8 widths), and around the MLP's nonlinearity two hidden widths. The logits are kept with an fp32
    # copy and its gradient.
    per_block = 8 * model.d_model + 2 * model.hidden
    return tokens * (width * model.layers * per_block + model.vocab_size * (width + 8))


def _evaluation_plan(config: RunConfig) -> EvaluationPlan | None:
    section = config.eval
    if section.every_steps is None:
        return None
    per_pass = config.train.micro_batch * config.cluster.workers
    return EvaluationPlan(
        count=section.count(0, last=config.train.steps),
        samples=section.samples,
        micro_steps=None if section.samples is None else math.ceil(section.samples / per_pass),
    )


def _checkpoint_plan(config: RunConfig, parameters: int, bandwidth_mb_s: float) -> CheckpointPlan:
    stored = int(parameters * config.checkpoint.keyframe_bytes_per_parameter)
    kept = config.checkpoint.keep_last + _KEPT_FOR_THE_LADDER
    if config.checkpoint.keep_best:
        kept += 2 if config.checkpoint.writes_differences else 1  # with the keyframe that it may build on
    log = 0 if config.checkpoint.gradient_log == "off" else int(parameters * LOG_BYTES_PER_PARAMETER)
    return CheckpointPlan(
        raw_bytes=int(parameters * RAW_BYTES_PER_PARAMETER),
        stored_bytes=stored,
        upload_s=stored / (bandwidth_mb_s * 1e6),
        kept_bytes=stored * kept,
        saves=math.ceil(config.train.steps / config.checkpoint.interval),
        log_bytes=log,
        # From the newest checkpoint but one on, and the steps while the next one is being written.
        log_kept_bytes=log * 3 * config.checkpoint.interval,
    )


def _notes(config: RunConfig, batch: BatchPlan, checkpoint: CheckpointPlan | None) -> list[str]:
    notes = []
    if batch.padded_samples:
        notes.append(
            f"{batch.padded_samples} of {config.train.global_batch + batch.padded_samples} sample places in a step are "
            f"padding ({batch.padded_share:.0%} of the compute): cluster.workers x train.micro_batch "
            f"({config.cluster.workers} x {config.train.micro_batch}) does not divide train.global_batch."
        )
    if config.train.steps <= config.rollback.min_steps:
        notes.append(
            f"The run ends before rollback.min_steps ({config.rollback.min_steps}): tier 2 will not find a checkpoint "
            "that old, and only the initial state can serve."
        )
    if checkpoint is not None and checkpoint.upload_s > config.checkpoint.deadline_s:
        notes.append(
            f"One upload takes {checkpoint.upload_s:.0f} s, above checkpoint.deadline_s "
            f"({config.checkpoint.deadline_s:g}): every save would be abandoned."
        )
    late = [fault.step for fault in config.drill.faults if fault.step >= config.train.steps]
    if late:
        notes.append(f"Drill faults at step {', '.join(map(str, late))} never fire: the run has {config.train.steps}.")
    return notes


def _unchecked(
    config: RunConfig, known: TransformerArgs | None, bandwidth_mb_s: float, parameters: int | None
) -> list[str]:
    own = [
        f"{kind}.factory {section.factory}"
        for kind, section in (("model", config.model), ("data", config.data), ("optimizer", config.optimizer))
        if not section.factory.startswith(PREFIX)
    ]
    found = [f"{name}: your own code is not imported, nor its args checked" for name in own]
    if parameters is None:
        found.append("memory and checkpoint size: only your model knows its parameters (give --params)")
    elif known is None:
        found.append("activations: only your model knows them")
    return [
        *found,
        "device memory and free resources of the cluster: it is not asked",
        f"storage {config.storage.url}: not contacted; {bandwidth_mb_s:g} MB/s is assumed, not measured",
        "data: neither read nor counted",
        (
            "memory figures are estimates: allocator, kernels and communication buffers come on top, and on several nodes "
            "copies of another node's snapshots in shared memory"
        ),
    ]
