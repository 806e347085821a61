"""The cheap kind of trial: one process, the run's own model, data order, schedule, clip rule and detectors.

What it shares with a run is what decides on numbers: `factories`, `BatchReader`, `DataOrder`, `scheduled_lr`,
`clip_factor`, `judge`. What it leaves out is what makes a run survive: DeepSpeed, Ray Train, the ladder. It computes
in fp32. An incident is counted and trained through, since a repair would hide what a sweep wants to see; only weights or
gradients that stay non-finite end the trial. Its state is a function of (configuration, step), and saved now and then.
"""

from __future__ import annotations

import functools
import io
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Protocol

import torch
from torch import nn

from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.training import DataSection
from stormsail.platform.data.order import DataOrder
from stormsail.platform.data.source import DataSource
from stormsail.tuning.limits import OverTimeError
from stormsail.tuning.metrics import Course, Figures, divergence_score, figures_of, quantile
from stormsail.tuning.probe import max_attention_logit
from stormsail.tuning.stopping import rung_reached
from stormsail.workers import factories
from stormsail.workers.batches import Batch, BatchReader
from stormsail.workers.clip import clip_factor
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import Observation, VerdictKind, judge
from stormsail.workers.lean_imports import defer_compiler, set_deterministic
from stormsail.workers.schedule import scheduled_lr
from stormsail.workers.seeding import seed_all
from stormsail.workers.vitals import token_correction

_PROBES = 10
_LEAST_NORMS = 10
_CPU = torch.device("cpu")


class Keeper(Protocol):
    """Keeps the state of a trial that is not finished."""

    def load(self) -> bytes | None:
        """The newest state, or None."""

    def save(self, body: bytes) -> None:
        """Keep this one instead."""


Report = Callable[[int, float, "BareTrial"], None]
"""Called at rungs with progress in hundredths, the divergence score, and the trial as it stands; may end it."""


class BareTrial:
    """One proxy in this process (one thread of it).

    Args:
        config: The trial as a run.
        percentile: Clip at this percentile of the norms so far instead of `train.clip_norm`, or None.
        device: Where to compute.

    Attributes:
        course: What was noted so far.
        step: Next step to run.
        wall_s: Seconds of computing, earlier attempts included.
        restarts: How often the trial went on from its saved state.
        stopped: Why it ended early, or "".
    """

    def __init__(self, config: RunConfig, *, percentile: float | None = None, device: torch.device = _CPU) -> None:
        self.config = config
        self.percentile = percentile
        self.device = device
        seed_all(config.seed)  # as the engine does, so that a trial starts from the weights that a run would
        self.model = factories.build_model(config.model).to(device)
        self.optimizer = factories.build_optimizer(config.optimizer, list(self.model.named_parameters()))
        self.ratios = [float(group["lr"]) / config.optimizer.lr for group in self.optimizer.param_groups]
        self.reader = BatchReader(
            _source(config.data.model_dump_json()),
            rank=0,
            world_size=1,
            global_batch=config.train.global_batch,
            micro_batch=config.train.micro_batch,
            sequence_tokens=config.data.sequence_tokens,
        )
        self.order = DataOrder(samples=self.reader.samples, seed=config.seed)
        # What a run would clip or skip on the detectors' word is only reported: a guard would hide what is looked for.
        self.policy = replace(Policy.of(config, samples=self.reader.samples), on_watch="report")
        self.detector = DetectorState()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.course = Course()
        self.step = 0
        self.wall_s = 0.0
        self.restarts = 0
        self.stopped = ""
        self._ill = False

    @property
    def over(self) -> bool:
        """Whether there is nothing left to run."""
        return bool(self.stopped) or self.step >= self.config.train.steps

    def figures(self) -> Figures:
        """What was seen so far."""
        return figures_of(self.course, steps=self.config.train.steps, stopped=self.stopped)

    def run_step(self) -> None:
        """Train on one global batch, as the run's step loop does: compute, judge, and only then update."""
        started = time.perf_counter()
        step = self.step
        batches = [self._moved(batch) for batch in self.reader.micro_batches(step, self.order)]
        seed_all(self.config.seed, step, 0)
        loss, tokens = self._compute(batches)
        norm, bad = self._gradients(tokens)
        bad += tokens > 0 and not math.isfinite(loss)
        seen = Observation(
            step=step,
            loss=loss,
            grad_norm=norm,
            nonfinite_gradients=bad,
            nonfinite_state=bool(bad) and self._poisoned(),
            tokens=tokens,
        )
        self.detector, verdict = judge(self.detector, seen, self.policy)
        nonfinite = bad or not math.isfinite(norm)
        if verdict.kind is VerdictKind.INCIDENT:
            if not self._ill:  # nothing repairs it here, and what goes on is one incident
                self.course.incidents.append(step)
            self.stopped = verdict.reason if nonfinite else ""
        self._ill = verdict.kind is VerdictKind.INCIDENT or (self._ill and verdict.kind is not VerdictKind.HEALTHY)
        self._note(loss, norm, flagged=not verdict.kind.applies_update or verdict.kind is VerdictKind.WATCH)
        if nonfinite or tokens == 0:
            self._skip()
        else:
            self._update(step, norm)
        self.step += 1
        if step % max(1, self.config.train.steps // _PROBES) == 0:
            self._probe(step, batches[0])
        self.wall_s += time.perf_counter() - started

    def dump(self) -> bytes:
        """The whole state, to go on from in another process."""
        buffer = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "detector": self.detector.to_json(),
                "course": asdict(self.course),
                "step": self.step,
                "wall_s": self.wall_s,
                "restarts": self.restarts,
                "ill": self._ill,
            },
            buffer,
        )
        return buffer.getvalue()

    def load(self, body: bytes) -> None:
        """Go on from a state that `dump` made."""
        state = torch.load(io.BytesIO(body), weights_only=True, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.detector = DetectorState.from_json(state["detector"], self.policy.rules)
        self.course = Course(**state["course"])
        self.step, self.wall_s = state["step"], state["wall_s"]
        self.restarts, self._ill = state["restarts"] + 1, state["ill"]

    def _moved(self, batch: Batch) -> Batch:
        tokens, targets, mask = batch
        return tokens.to(self.device), targets.to(self.device), mask.to(self.device)

    def _compute(self, batches: list[Batch]) -> tuple[float, int]:
        """Forward and backward of all micro-batches; mean loss over real tokens, and how many there were.

        Without any, the loss is that of the step before: nothing was seen, and nothing moves.
        """
        self.optimizer.zero_grad(set_to_none=True)
        scale = 1.0 / self.reader.nominal_tokens
        total, tokens = 0.0, 0
        for tokens_BT, targets_BT, mask_BT in batches:  # noqa: N806 - the suffix names the shape
            losses = factories.call_model(self.model, tokens_BT, targets_BT, mask_BT)
            summed = (losses.float() * mask_BT).sum()
            (summed * scale).backward()  # type: ignore[no-untyped-call]  # torch's own
            total += float(summed.detach())
            tokens += int(mask_BT.sum())
        if tokens:
            return total / tokens, tokens
        return (self.course.loss[-1] if self.course.loss else math.nan), tokens

    def _gradients(self, tokens: int) -> tuple[float, int]:
        """Global gradient norm over the real tokens, and how many elements are not finite."""
        squares, bad = 0.0, 0
        for parameter in self.parameters:
            if parameter.grad is not None:
                square = float(torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)) ** 2
                squares += square
                if not math.isfinite(square):
                    bad += int((~torch.isfinite(parameter.grad)).sum())
        norm = math.sqrt(squares) if math.isfinite(squares) else math.inf
        return norm * token_correction(tokens, self.reader.nominal_tokens), bad

    def _poisoned(self) -> bool:
        return any(not bool(torch.isfinite(parameter).all()) for parameter in self.parameters)

    def _limit(self) -> float | None:
        """The clip limit of this step; a percentile is that of all earlier finite norms, once there are ten."""
        if self.percentile is None:
            return self.config.train.clip_norm
        known = [norm for norm in self.course.norm[:-1] if math.isfinite(norm)]
        return quantile(known, self.percentile / 100.0) if len(known) >= _LEAST_NORMS else None

    def _update(self, step: int, norm: float) -> None:
        limit = self._limit()
        scale = clip_factor(norm, limit)
        self.course.clipped.append(scale < 1.0)
        lr = scheduled_lr(
            step,
            peak=self.config.optimizer.lr,
            warmup_steps=self.config.schedule.warmup_steps,
            total_steps=self.config.train.steps,
            min_ratio=self.config.schedule.min_ratio,
        )
        for group, ratio in zip(self.optimizer.param_groups, self.ratios, strict=True):
            group["lr"] = lr * ratio
        if scale != 1.0:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        before = nn.utils.parameters_to_vector(self.parameters).detach().clone()
        self.optimizer.step()
        moved = nn.utils.parameters_to_vector(self.parameters).detach() - before
        self.course.update_rms.append(float(moved.square().mean().sqrt()) / lr if lr else 0.0)

    def _skip(self) -> None:
        self.course.clipped.append(False)
        self.course.update_rms.append(0.0)

    def _note(self, loss: float, norm: float, *, flagged: bool) -> None:
        self.course.loss.append(loss)
        self.course.norm.append(norm)
        self.course.flagged.append(flagged)

    def _probe(self, step: int, batch: Batch) -> None:
        logit = max_attention_logit(self.model, batch[0][:1])
        if logit is not None:
            self.course.logits.append((step, logit))


@functools.lru_cache(maxsize=4)
def _source(section: str) -> DataSource:
    """The data, opened once for all trials of this process: samples are pure functions of their number."""
    return factories.build_data(DataSection.model_validate_json(section))


def _set_numerics(config: RunConfig) -> None:
    if not factories.brings_own_code(config):  # which finds torch as it is
        defer_compiler()
    set_deterministic(deterministic=config.train.deterministic)
    torch.set_num_threads(config.train.threads)


def run_bare(
    config: RunConfig,
    *,
    percentile: float | None,
    keeper: Keeper,
    checkpoint_steps: int,
    limit_s: float = math.inf,
    device: torch.device = _CPU,
    rungs: tuple[int, ...] = (),
    report: Report | None = None,
) -> BareTrial:
    """Run a trial to its end, or go on with one that was killed.

    Args:
        config: The trial as a run.
        percentile: As for `BareTrial`.
        keeper: Keeps the state between attempts.
        checkpoint_steps: Steps between two kept states.
        limit_s: Seconds of computing, all attempts together.
        device: Where to compute.
        rungs: Progress at which to report, in hundredths.
        report: Called at rungs.

    Raises:
        OverTimeError: The limit was reached before the end; the state is kept.
    """
    _set_numerics(config)
    trial = BareTrial(config, percentile=percentile, device=device)
    saved = keeper.load()
    if saved is not None:
        trial.load(saved)
    while not trial.over:
        if trial.wall_s >= limit_s:
            keeper.save(trial.dump())
            raise OverTimeError.at(trial.step, config.train.steps, limit_s)
        trial.run_step()
        if trial.step % checkpoint_steps == 0 and not trial.over:
            keeper.save(trial.dump())
        mark = rung_reached(trial.step, config.train.steps, rungs)
        if mark is not None:
            score = divergence_score(trial.course.loss)
            if score > 0.0 and trial.course.condemned is None:
                trial.course.condemned = trial.step
            if report is not None:
                report(mark, score, trial)
    return trial
