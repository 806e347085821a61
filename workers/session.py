"""What a rank holds of the run: engine, position, baselines and order, all brought where a directive says.

Everything that rolls back together is here, and changes only by a step (`loop.py`) or by obeying a directive.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from stormsail.platform.checkpoint.log_place import LogPlace
from stormsail.platform.checkpoint.manifest import CheckpointMeta
from stormsail.platform.config.dump import config_digest
from stormsail.platform.config.model import RunConfig
from stormsail.platform.data.order import DataOrder
from stormsail.platform.diagnosis import ReplayResult
from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef, Directive, Incident, Phase, World
from stormsail.platform.storage.store import ObjectStore
from stormsail.platform.vault.places import PLACES
from stormsail.workers import log_replay, vitals
from stormsail.workers import restore as restoring
from stormsail.workers.continuity import Continuity
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.engine import ZeroEngine
from stormsail.workers.evaluation import Evaluation
from stormsail.workers.heartbeat import HeartbeatThread
from stormsail.workers.measure import software

MAX_RESTORE_TRIES = 16  # besides those that one damaged keyframe takes along


class Supervisor(Protocol):
    """What rank 0 asks of the supervisor; each call blocks and is made only off the healthy path."""

    def incident(self, incident: Incident) -> Directive:
        """Report an incident and get the decision, or the experiment that it needs."""

    def replayed(self, incident: Incident, result: ReplayResult) -> Directive:
        """Report what the experiment has shown and get the decision."""

    def restore_failed(self, ref: CheckpointRef, problem: str) -> Directive:
        """Report that a checkpoint could not be loaded and get another decision."""

    def replay_failed(self, generation: int, step: int, problem: str) -> Directive:
        """Report that the gradient log could not be replayed from a step on and get a decision without that."""


@dataclass
class Position:
    """Where the run is; rolls back with the state.

    Attributes:
        step: Next step to run (= global batches consumed).
        applied: Optimizer updates so far.
        tokens: Real tokens consumed so far.
    """

    step: int = 0
    applied: int = 0
    tokens: int = 0


class Session:
    """The state of one rank in one world. All methods are called from the training thread.

    Args:
        config: The run.
        world: The process group that this rank is in.
        device: Where to compute.
        store: The run's store.
        samples: Samples of the data source.
        supervisor: Asked by rank 0 when a checkpoint cannot be loaded.
        beat: The line to the supervisor.
        on_generation: Told of each new generation before anything else is done.
        nearby: Where a state may be nearer than in the store.
        log_source: Where the gradient log is read from; None: from the run's store.

    Attributes:
        unproven: A state was loaded that no recorded loss can prove right; the next steps are judged for it.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        *,
        device: torch.device,
        store: ObjectStore,
        samples: int,
        supervisor: Supervisor,
        beat: HeartbeatThread,
        on_generation: Callable[[int], None],
        nearby: restoring.Nearby = restoring.NOWHERE,
        log_source: LogPlace | None = None,
    ) -> None:
        self.config = config
        self.world = world
        self.device = device
        self.position = Position()
        self.policy = Policy.of(config, samples=samples)
        self.loaded_step = 0
        self.detector = DetectorState()
        self.unproven = False
        self.continuity = Continuity((), exact=False, limits=self.policy.beside.continuity)
        self.order = DataOrder(samples, config.seed, ())
        self.directive = Directive(generation=0)
        self._store = store
        self._log_source = log_source or store
        self._samples = samples
        self._supervisor = supervisor
        self._beat = beat
        self._on_generation = on_generation
        self._nearby = nearby
        self._bytes_from: dict[str, int] = {}
        self._engine: ZeroEngine | None = None
        self._same_shape = True

    @property
    def engine(self) -> ZeroEngine:
        """The engine in use."""
        if self._engine is None:
            raise InternalError("the engine is used before a directive was obeyed")
        return self._engine

    def obey(self, directive: Directive) -> None:
        """Do what was decided: precision, state, order, all on all ranks alike (collective)."""
        # A damaged keyframe takes all that builds on it with it, one try each, and behind it there is more to try.
        tries = MAX_RESTORE_TRIES + self.config.checkpoint.max_deltas
        for _ in range(tries):
            self.directive = directive
            self._on_generation(directive.generation)
            if directive.stop_reason:
                return
            self._beat.at(Phase.BUILD, self.position.step, generation=directive.generation)
            self._build(directive)
            begun = time.perf_counter()
            self._beat.at(Phase.LOAD, self.position.step)
            instead = self._bring_there(directive)
            if instead is None:
                self._begin(directive, time.perf_counter() - begun)
                return
            directive = instead
        raise InternalError(f"{tries} checkpoints in a row could not be loaded")

    def _bring_there(self, directive: Directive) -> Directive | None:
        """Load the state and take the logged steps. Returns what was decided instead where either failed, else None."""
        replacement = None
        problem = self._load(directive)
        if problem is not None and self.world.rank == 0:
            assert directive.restore is not None  # noqa: S101 - only a restore can fail
            replacement = self._supervisor.restore_failed(directive.restore, problem)
        if problem is None:
            refused = self._replay(directive)
            if refused is None:
                return None
            if self.world.rank == 0:
                replacement = self._supervisor.replay_failed(directive.generation, refused.step, refused.problem)
        return vitals.share_object(replacement, device=self.device)

    def _build(self, directive: Directive) -> None:
        """Make sure that an engine of the right precision is there, fresh where the start state is wanted."""
        if self._engine is not None and self._engine.precision == directive.precision and directive.restore is not None:
            return
        self.rebuild(directive.precision)

    def rebuild(self, precision: str) -> None:
        """Replace the engine by a fresh one of this precision (collective); its state is the initial one."""
        if self._engine is not None:
            self._engine.destroy()
        self._engine = ZeroEngine(
            self.config,
            precision=precision,
            rank=self.world.rank,
            world_size=self.world.world_size,
            device=self.device,
        )

    def load_state(self, ref: CheckpointRef | None) -> DetectorState | str:
        """Put a checkpoint's state (None: the initial one) into the engine, and nothing else (collective).

        Returns:
            The detectors of that step, or, on all ranks alike, what is wrong with the checkpoint.
        """
        if ref is None:
            self.rebuild(self.engine.precision)
            return DetectorState()
        found = restoring.restore(
            self.engine,
            self._store,
            ref,
            rules=self.policy.rules,
            patience_s=self.config.journal.deadline_s,
            nearby=self._nearby,
        )
        return found if isinstance(found, str) else found.detector

    def _load(self, directive: Directive) -> str | None:
        """Load the directive's state. Returns None, or what is wrong with it."""
        if directive.restore is None:
            self._bytes_from = {}
            self.position = Position()
            self.detector = DetectorState()
            return None
        found = restoring.restore(
            self.engine,
            self._store,
            directive.restore,
            rules=self.policy.rules,
            patience_s=self.config.journal.deadline_s,
            nearby=self._nearby,
        )
        if isinstance(found, str):
            return found
        meta, self.detector, self._bytes_from = found.meta, found.detector, found.bytes_from
        self.position = Position(step=meta.step, applied=meta.applied, tokens=meta.tokens)
        self._same_shape = (meta.world_size, meta.threads) == (self.world.world_size, self.config.train.threads)
        return None

    def _replay(self, directive: Directive) -> log_replay.Refused | None:
        """Go on from the loaded state by the gradient log. Returns None, or why that could not be done."""
        self.loaded_step = self.position.step
        if not directive.replay:
            return None
        begun = time.perf_counter()
        found = log_replay.replay(
            self.engine,
            self._log_source,
            directive.replay,
            rank=self.world.rank,
            world_size=self.world.world_size,
            detector=self.detector,
            policy=self.policy,
            patience_s=self.config.journal.deadline_s,
            rounded_at=self.is_rounded_at,
        )
        if isinstance(found, log_replay.Refused):
            return found
        self.detector = found.detector
        self.position = Position(step=found.step, applied=found.applied, tokens=found.tokens)
        if self.world.rank == 0:
            for row in found.rows:  # the supervisor may not have heard of the last ones
                self._beat.row(dataclasses.replace(row, generation=directive.generation))
            self._beat.line(
                "log.replayed", step=found.step, from_step=self.loaded_step, took_s=time.perf_counter() - begun
            )
        return None

    def is_rounded_at(self, step: int) -> bool:
        """Whether the state is rounded when it has come to this step, as part of the run's arithmetic."""
        return self.config.checkpoint.rounding and step % self.config.checkpoint.interval == 0

    def _begin(self, directive: Directive, took_s: float) -> None:
        self.order = DataOrder(self._samples, self.config.seed, directive.skip)
        self.continuity = Continuity(
            directive.expected_losses, exact=directive.exact and self._same_shape, limits=self.policy.beside.continuity
        )
        # Steps of the log lead to a known sum of all words, which proves more than any loss.
        self.unproven = directive.restore is not None and not directive.expected_losses and not directive.replay
        self._beat.at(Phase.STEP, self.position.step)
        places = vitals.gather_objects(self._bytes_from) if directive.restore is not None else []
        if self.world.rank == 0 and (directive.restore is not None or directive.tier is not None):
            ref = directive.restore
            self._beat.line(
                "state.restored",
                ref_generation=ref.generation if ref else None,
                ref_step=ref.step if ref else 0,
                generation=directive.generation,
                step=self.position.step,
                replayed=self.position.step - self.loaded_step,
                applied=self.position.applied,
                tokens=self.position.tokens,
                precision=self.engine.precision,
                compute_dtype=str(self.engine.compute_dtype).removeprefix("torch."),
                took_s=took_s,
                places=_add_up(places),
            )

    def leave_fp32(self) -> None:
        """The FP32 window is over: carry the state into an engine of the run's precision (collective)."""
        self._beat.at(Phase.BUILD, self.position.step)  # building takes longer than any step
        engine = self.engine
        begun = time.perf_counter()
        dtype = str(engine.compute_dtype).removeprefix("torch.")
        shards, scalars = engine.copy_state(), engine.optimizer_scalars()
        self.rebuild(self.config.train.precision)
        self.engine.write_state(shards, scalars)
        if self.world.rank == 0:
            self._beat.line(
                "replay.finished",
                step=self.position.step,
                window_dtype=dtype,
                precision=self.engine.precision,
                took_s=time.perf_counter() - begun,
            )
        self.directive = dataclasses.replace(self.directive, fp32_until=None, precision=self.config.train.precision)

    def metadata(self, evaluation: Evaluation | None = None) -> CheckpointMeta:
        """What a checkpoint of this moment holds besides the tensors.

        Args:
            evaluation: What was found of this state, if it was evaluated.
        """
        loss = None if evaluation is None else evaluation.loss
        return CheckpointMeta(
            step=self.position.step,
            applied=self.position.applied,
            tokens=self.position.tokens,
            data_position=int(self.order.positions(self.position.step, self.config.train.global_batch)[0]),
            world_size=self.world.world_size,
            threads=self.config.train.threads,
            precision=self.engine.precision,
            config_digest=config_digest(self.config),
            software=software(),
            optimizer=self.engine.optimizer_scalars(),
            rng={"counter": "seed, step, rank", "seed": self.config.seed},
            detector=self.detector.to_json(),
            eval_loss=loss,
            eval_set=None if evaluation is None or loss is None else evaluation.eval_set,
            decided={
                "lr_events": [dataclasses.asdict(event) for event in self.directive.lr_events],
                "skip": [list(pair) for pair in self.directive.skip],
            },
        )


def _add_up(places: Sequence[dict[str, int]]) -> dict[str, int]:
    """Bytes from each place over all ranks."""
    sums = {place: sum(found.get(place, 0) for found in places) for place in PLACES}
    return {place: count for place, count in sums.items() if count}
