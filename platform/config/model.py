"""The configuration tree: every key, its unit, its range and its default, in one frozen pydantic model.

Nothing here does I/O. `load.py` reads files, environment and `--set`; after start-up nobody reads the
environment again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from stormsail.platform.checkpoint.interval import (
    KEYFRAME_BYTES_PER_PARAMETER,
    LOG_BYTES_PER_PARAMETER,
    ROUNDED_BYTES_PER_PARAMETER,
    best_interval,
)
from stormsail.platform.config.detect import DetectSection
from stormsail.platform.config.section import Args, Count, Fraction, Positive, Seconds, Section, list_to_tuple

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")

# A decision waits for saves that are being published, then for the store.
DECISION_MARGIN_S = 60.0


class ModelSection(Section):
    """What is trained."""

    factory: str = Field("builtin:transformer", description="`builtin:NAME`, or `module:function` of your own code")
    args: Args = Field(default_factory=dict, description="handed to the factory as its `args`")


class DataSection(Section):
    """What it is trained on."""

    factory: str = Field("builtin:python-stdlib", description="`builtin:NAME`, or `module:function` of your own code")
    args: Args = Field(default_factory=dict, description="handed to the factory as its `args`")
    sequence_tokens: Positive = Field(128, description="tokens per sample")


class OptimizerSection(Section):
    """How the weights move. The learning rate's course over time is in `schedule`."""

    factory: str = Field("builtin:adamw", description="`builtin:NAME`, or `module:function` of your own code")
    args: Args = Field(default_factory=dict, description="handed to the factory as its `args`")
    lr: Annotated[float, Field(gt=0.0)] = Field(1e-3, description="peak learning rate")
    betas: Annotated[tuple[Fraction, Fraction], BeforeValidator(list_to_tuple)] = Field(
        (0.9, 0.95), description="AdamW's exponential decay rates of the two moments"
    )
    eps: Annotated[float, Field(gt=0.0)] = Field(
        1e-8, description="added to the root of the second moment; larger values slow layers with small gradients"
    )
    weight_decay: Annotated[float, Field(ge=0.0)] = Field(0.1, description="decoupled; matrices only")


class ScheduleSection(Section):
    """Learning-rate schedule: linear warm-up, then cosine to `min_ratio` of the peak at `train.steps`."""

    warmup_steps: Count = Field(20, description="steps of linear warm-up")
    min_ratio: Fraction = Field(0.1, description="last learning rate as a share of the peak")


class TrainSection(Section):
    """The step loop."""

    steps: Positive = Field(description="global batches to consume")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="compute precision; masters and moments are fp32")
    global_batch: Positive = Field(16, description="samples per step over all workers; constant at any worker count")
    micro_batch: Positive = Field(8, description="samples per forward pass of one worker")
    deterministic: bool = Field(default=True, description="refuse operations whose result depends on timing")
    threads: Positive = Field(1, description="CPU threads of one worker; part of what makes bits repeat")
    clip_norm: Annotated[float, Field(gt=0.0)] | None = Field(
        1.0, description="global gradient norm limit; null is off"
    )
    log_every: Positive = Field(10, description="steps between two printed lines")


class ClusterSection(Section):
    """Where the workers run."""

    workers: Positive = Field(2, description="worker processes (ranks)")
    cpus_per_worker: Annotated[float, Field(gt=0.0)] = Field(1.0, description="CPUs reserved for one worker")
    accelerator: Literal["auto", "cpu", "gpu"] = Field("auto", description="auto takes GPUs where the cluster has them")
    address: str | None = Field(None, description="Ray address; null: RAY_ADDRESS, or else a local cluster of our own")
    wait_s: Seconds = Field(600.0, description="how long to wait for free resources")
    collective_timeout_s: Seconds = Field(
        900.0, description="limit of one collective; longer than a decision may take, and a hang with its evidence"
    )
    start_timeout_s: Seconds = Field(300.0, description="limit for a worker group to start and form its world")
    step_timeout_s: Seconds = Field(300.0, description="limit for one step before the attempt is ended")
    shared_path: str | None = Field(None, description="folder that all nodes share; needed by Ray on several nodes")


class StorageSection(Section):
    """Where the run keeps what it must not lose. In YAML a plain string stands for `url`."""

    url: Annotated[str, Field(pattern=r"^(embedded|s3://[^/\s]+(/\S*)?|file:///.+)$")] = Field(
        "embedded", description="`embedded`, `s3://bucket/prefix` or `file:///path`"
    )
    endpoint: str | None = Field(None, description="S3 endpoint; null is AWS, or AWS_ENDPOINT_URL_S3")
    region: str | None = Field(None, description="S3 region; null is the environment's")
    profile: str | None = Field(None, description="AWS profile; null is the default chain")
    checksums: Literal["when_supported", "when_required"] = Field(
        "when_supported",
        description="S3 checksum headers; some S3-like stores need `when_required`, which sends Content-MD5 in their place",
    )
    timeout_s: Seconds = Field(30.0, description="limit of one request, retries apart")

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class CheckpointSection(Section):
    """When state is saved, and what is kept."""

    every_steps: Positive | Literal["auto"] = Field(
        10,
        description="steps between two checkpoints; `auto`, with a gradient log: as many as move the fewest bytes",
    )
    steps_per_failure: Positive = Field(1000, description="steps between two failures, as far as `auto` need know")
    keep_last: Positive = Field(
        3, description="newest good checkpoints to keep; what the ladder may need is always kept"
    )
    keep_every_steps: Positive | None = Field(
        None, description="also keep the first good checkpoint of each stretch of so many steps, for ever"
    )
    keep_every_hours: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="also keep the first good checkpoint of each stretch of so many hours, for ever"
    )
    keep_best: bool = Field(
        default=False, description="also keep the one with the lowest evaluation loss; needs an evaluation"
    )
    good_after_steps: Count = Field(20, description="healthy steps beyond a checkpoint before it is known good")
    deadline_s: Seconds = Field(300.0, description="limit of one save; a later one is abandoned")
    ring: Positive = Field(3, description="newest snapshots of each rank that stay in its node's memory")
    vault_gib: Annotated[float, Field(ge=0.0)] | None = Field(
        None,
        description="GiB of each node's shared memory for snapshots that survive a worker; "
        "null: half of what is free there; 0: none",
    )
    max_missed: Positive = Field(3, description="saves missed in a row before an alert")
    gradient_log: Literal["off", "vault", "store"] = Field(
        "off",
        description="keep each step's gradient as bf16, so that no finished step is lost: with a process or one of several "
        "nodes (`vault`, in its node's memory and its buddy's) or with all of them (`store`); gradients are then rounded to bf16, as part of the run's arithmetic",
    )
    deltas: bool = Field(
        default=True,
        description="write differences to the last keyframe: fewer bytes, same state; 8 bytes of memory for a parameter; "
        "with a gradient log only in rounding mode",
    )
    rounding: bool = Field(
        default=False,
        description="at each checkpoint step round the live state (masters to 15 mantissa bits, moments to 7), which "
        "makes checkpoints half as large; part of the run's arithmetic",
    )
    max_deltas: Positive = Field(10, description="differences on one keyframe before the next one is written")
    max_delta_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.97, description="size of a difference over its keyframe's from which on a rank writes in full"
    )

    @property
    def interval(self) -> int:
        """Steps between two checkpoints."""
        if self.every_steps != "auto":
            return self.every_steps
        return best_interval(
            keyframe_bytes=self.keyframe_bytes_per_parameter,
            log_bytes=LOG_BYTES_PER_PARAMETER,
            steps_per_failure=self.steps_per_failure,
        )

    @property
    def keyframe_bytes_per_parameter(self) -> float:
        """What a checkpoint that is whole in itself takes on the store, for each parameter."""
        return ROUNDED_BYTES_PER_PARAMETER if self.rounding else KEYFRAME_BYTES_PER_PARAMETER

    @property
    def writes_differences(self) -> bool:
        """Whether saves build on a keyframe, whose words each rank then keeps in memory."""
        # Where the log is the increment, a difference saves little and makes restores read twice.
        return self.deltas and (self.gradient_log == "off" or self.rounding)


class NonfiniteSection(Section):
    """Non-finite gradients are never applied; this says how many dropped updates are too many."""

    patience: Positive = Field(3, description="dropped updates in a row that open an incident")
    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.3,
        description="share of dropped updates among the last 20 or so steps beyond which they do so too, from the tenth on; "
        "1: never",
    )


class HangSection(Section):
    """When a rank that does not move is called stuck, and how long evidence may be gathered before it is ended."""

    factor: Annotated[float, Field(ge=2.0)] = Field(
        10.0,
        description="a step, or the copying of a save, may take this many times the longest one of its attempt; "
        "cluster.step_timeout_s caps the limit of a step",
    )
    floor_s: Seconds = Field(60.0, description="a limit that was learned is never shorter than this")
    learn_steps: Positive = Field(
        20, description="steps, or saves, of all ranks together, before a limit is learned from them"
    )
    silent_s: Seconds = Field(
        5.0, description="a rank whose heartbeats stay away for this long is blamed first; they come twice a second"
    )
    evidence_s: Seconds = Field(20.0, description="limit for stacks and other evidence, before anything is ended")


class DiagnoseSection(Section):
    """The replay of an incident's steps in variants, from which the ladder learns where to begin."""

    enabled: bool = Field(default=False, description="find out the kind of a numeric incident before it is repaired")
    budget_steps: Positive = Field(50, description="steps that one diagnosis may compute in all")


class LadderSection(Section):
    """How the ladder of repairs is climbed."""

    probation_steps: Positive = Field(50, description="healthy steps past a numeric incident that close its episode")
    episodes_per_hour: Positive = Field(6, description="episodes within an hour before the run stops for a person")
    episodes_total: Positive = Field(50, description="episodes in all before the run stops for a person")
    reset_after_steps: Positive = Field(1000, description="healthy steps that reset both budgets")
    on_anomaly: Literal["repair", "stop"] = Field(
        "repair",
        description="an incident of bad numbers: climb the ladder, or `stop` the run for a person (exit code 4); lost "
        "processes are resumed either way",
    )
    shadow: bool = Field(
        default=False, description="decide, journal and alert, but do not act; a lost process is still resumed"
    )


class RollbackSection(Section):
    """Tier 2."""

    min_steps: Count = Field(100, description="a numeric rollback goes at least this far before the onset")
    lr_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.8, description="the learning rate is multiplied by this"
    )


class Fp32Section(Section):
    """Tier 3."""

    window_steps: Positive = Field(100, description="steps before the onset from which FP32 replay starts")
    margin_steps: Count = Field(10, description="steps past the last anomalous one that are still done in FP32")


class LrSection(Section):
    """What becomes of a reduced learning rate."""

    floor: Fraction = Field(0.5, description="lowest factor on the schedule; at the floor tier 2 counts as failed")
    hold_steps: Count = Field(200, description="steps that a factor is held after its episode closed")
    ramp_steps: Positive = Field(1000, description="steps over which the factor returns to 1")


class JournalSection(Section):
    """The run's memory of what was decided."""

    deadline_s: Seconds = Field(300.0, description="how long a new generation waits for a store that is down")


# Whoever types the secret itself by mistake must not see it again in an error or a log: `explain` hides such values.
SecretReference = Annotated[
    str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)$", json_schema_extra={"x-secret": True})
]


class EmailSection(Section):
    """A mail server that alerts are sent through."""

    host: str = Field(description="SMTP server")
    port: Positive = Field(587, description="its port")
    security: Literal["starttls", "tls", "none"] = Field("starttls", description="how the connection is encrypted")
    user: str | None = Field(None, description="name to log in with; null: no login")
    password: SecretReference | None = Field(None, description="`env:NAME` or `file:/path`, never the password itself")
    sender: str = Field(description="address that the mail comes from")
    to: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(list_to_tuple)] = Field(
        description="addresses that it goes to"
    )

    @model_validator(mode="after")
    def _consistent(self) -> EmailSection:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together: give both, or neither")
        if self.password is not None and self.security == "none" and self.host not in _THIS_MACHINE:
            raise ValueError("security: a password is not sent unencrypted; choose starttls or tls")
        return self


class AlertsSection(Section):
    """Who is told when a person should know. Secrets are named by reference, never written here."""

    slack: SecretReference | None = Field(
        None, description="incoming webhook of Slack or of what speaks like it: `env:NAME` or `file:/path`; null: off"
    )
    email: EmailSection | None = Field(None, description="mail server and addresses; null: off")
    apprise: SecretReference | None = Field(
        None,
        description="`env:NAME` or `file:/path` with Apprise URLs, one a line; needs the extra `alerts`; null: off",
    )
    level: Literal["info", "warning", "page"] = Field("info", description="the least that is worth a message")
    group_s: Seconds = Field(5.0, description="an alert waits this long for others of the same message")
    every_s: Seconds = Field(60.0, description="least time between two messages, unless a person is needed at once")
    timeout_s: Seconds = Field(10.0, description="limit of one try to deliver")
    give_up_s: Seconds = Field(3600.0, description="a message that could not be delivered for this long is given up")

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that are configured."""
        return tuple(name for name in ("slack", "email", "apprise") if getattr(self, name) is not None)


class TrackingSection(Section):
    """MLflow is a mirror that may fail; the run's own storage is the record."""

    uri: str | None = Field("sqlite", description="MLflow tracking URI; `sqlite`: a file of our own; null: off")
    experiment: str = Field("stormsail", description="MLflow experiment name")
    every_s: Seconds = Field(5.0, description="seconds between two batches sent")


FaultStep = Annotated[Count, Field(description="global step at which it begins")]
FaultSteps = Annotated[Positive, Field(description="steps that it lasts")]
FaultRank = Annotated[Count, Field(description="the rank that it hits")]
FaultTimes = Annotated[Positive | None, Field(description="fire only this many times; null: always")]


class KillFault(Section):
    """SIGKILL one rank, once: at the start of a step, or while the checkpoint of a step is on its way."""

    kind: Literal["kill"]
    step: FaultStep
    rank: FaultRank = 0
    during: Literal["step", "save"] = Field(
        "step", description="`save`: after this rank wrote its part of the checkpoint of `step`, before it is committed"
    )


class LrInstabilityFault(Section):
    """Multiply the applied learning rate by `scale`, but only while the ladder's LR factor is 1."""

    kind: Literal["lr_instability"]
    step: FaultStep
    steps: FaultSteps = 8
    scale: Annotated[float, Field(gt=1.0)] = Field(30.0, description="multiplies the applied learning rate")


class Bf16OverflowFault(Section):
    """Make one rank's gradient overflow, but only while the engine does not compute in FP32."""

    kind: Literal["bf16_overflow"]
    step: FaultStep
    steps: FaultSteps = 3
    rank: FaultRank = 0


class NonfiniteFault(Section):
    """Make one rank's numbers non-finite at each step of a window, always or the first `times` times."""

    kind: Literal["nonfinite"]
    step: FaultStep
    steps: FaultSteps = 1
    rank: FaultRank = 0
    where: Literal["shard", "gradient", "loss"] = Field(
        "shard",
        description="`shard`: the rank's part of the gradient that all ranks have summed up; `gradient`: one element of "
        "the gradient that it computed itself, before ranks sum up; `loss`: its loss, hence all that follows from it",
    )
    times: FaultTimes = None


class RaiseFault(Section):
    """Raise an exception in one rank's step, as user code would, always or the first `times` times."""

    kind: Literal["raise"]
    step: FaultStep
    rank: FaultRank = 0
    times: FaultTimes = None


Fault = Annotated[
    KillFault | LrInstabilityFault | Bf16OverflowFault | NonfiniteFault | RaiseFault, Field(discriminator="kind")
]


class DrillSection(Section):
    """Faults to inject on purpose, and the proof that is asked for."""

    faults: Annotated[tuple[Fault, ...], BeforeValidator(list_to_tuple)] = Field((), description="what to break, when")
    twin_step: Count | None = Field(
        None, description="also run an undisturbed twin up to this step and compare the state bit for bit"
    )


class RunConfig(Section):
    """One run, whole."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = Field(
        description="names the run and its folder in the store: lower-case letters, digits, `.`, `_`, `-`"
    )
    seed: Count = Field(1, description="initial weights, data order and dropout follow from it")
    train: TrainSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    cluster: ClusterSection = ClusterSection()
    storage: StorageSection = StorageSection()
    checkpoint: CheckpointSection = CheckpointSection()
    detect: DetectSection = DetectSection()
    nonfinite: NonfiniteSection = NonfiniteSection()
    hang: HangSection = HangSection()
    diagnose: DiagnoseSection = DiagnoseSection()
    ladder: LadderSection = LadderSection()
    rollback: RollbackSection = RollbackSection()
    fp32: Fp32Section = Fp32Section()
    lr: LrSection = LrSection()
    journal: JournalSection = JournalSection()
    alerts: AlertsSection = AlertsSection()
    tracking: TrackingSection = TrackingSection()
    drill: DrillSection = DrillSection()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        found = list(self._contradictions())
        if found:
            raise ValueError("\n".join(found))
        return self

    def _log_contradictions(self) -> Iterator[str]:
        if self.checkpoint.every_steps == "auto" and self.checkpoint.gradient_log == "off":
            yield (
                "checkpoint.every_steps (auto) weighs checkpoints against the gradient log: "
                "set checkpoint.gradient_log, or a number of steps"
            )
        if self.checkpoint.gradient_log == "vault" and self.checkpoint.vault_gib == 0:
            yield "checkpoint.gradient_log (vault) has no room where checkpoint.vault_gib is 0: set it to `store`"

    def _detect_contradictions(self) -> Iterator[str]:
        spike = self.detect.spike
        if spike.needed is not None and spike.of is not None and spike.needed > spike.of:
            yield f"detect.spike.needed: {spike.needed} of detect.spike.of, {spike.of}, can never happen"
        for key in self.detect.without_effect():
            yield f"{key} has no effect with detect.preset {self.detect.preset}, which has no such rule"
        ranks = self.detect.ranks
        if 0 < ranks.incident_steps < ranks.watch_steps:
            yield (
                f"detect.ranks.incident_steps ({ranks.incident_steps}) must be at least detect.ranks.watch_steps "
                f"({ranks.watch_steps}), or 0 for never"
            )
        rate = self.detect.throughput
        if rate.collapsed is not None and rate.recovered is not None and rate.collapsed >= rate.recovered:
            yield f"detect.throughput.collapsed ({rate.collapsed:g}) must be below detect.throughput.recovered"

    def _contradictions(self) -> Iterator[str]:
        """What cannot all be meant, one line each, beginning with the key to change."""
        steps = self.train.steps
        if self.schedule.warmup_steps >= steps:
            said = "" if "warmup_steps" in self.schedule.model_fields_set else ", the default,"
            yield f"schedule.warmup_steps ({self.schedule.warmup_steps}){said} must be below train.steps ({steps})"
        yield from self._log_contradictions()
        yield from self._detect_contradictions()
        if self.drill.twin_step is not None and self.drill.twin_step > steps:
            yield f"drill.twin_step ({self.drill.twin_step}) must be at most train.steps ({steps})"
        if self.checkpoint.keep_best:
            yield "checkpoint.keep_best: the best one has the lowest evaluation loss, and this run is never evaluated"
        decision_s = self.journal.deadline_s + DECISION_MARGIN_S
        if self.cluster.collective_timeout_s < decision_s:
            yield (
                f"cluster.collective_timeout_s ({self.cluster.collective_timeout_s:g}) must be at least {decision_s:g}: "
                f"journal.deadline_s and {DECISION_MARGIN_S:g} s more, while all ranks wait for a decision"
            )
        hang_s = self.cluster.step_timeout_s + self.hang.evidence_s
        if self.cluster.collective_timeout_s < hang_s:
            yield (
                f"cluster.collective_timeout_s ({self.cluster.collective_timeout_s:g}) must be at least {hang_s:g}: "
                "cluster.step_timeout_s and hang.evidence_s, or else the ranks that wait for a hanging one die before "
                "their stacks are gathered"
            )
        for index, fault in enumerate(self.drill.faults):
            rank = getattr(fault, "rank", 0)
            if rank >= self.cluster.workers:
                workers = self.cluster.workers
                yield f"drill.faults.{index}.rank ({rank}) does not exist with cluster.workers ({workers})"
