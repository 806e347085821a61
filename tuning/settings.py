"""The keys of a sweep's YAML: what is trained small, over which settings, and what has to fail; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from stormsail.platform.config.section import Count, Fraction, Positive, Seconds, Section


def _list_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,30}$")]
ClipText = Annotated[str, Field(pattern=r"^(off|p[1-9][0-9]?)$")]
Clip = Annotated[float, Field(gt=0.0)] | ClipText
Beta2 = Annotated[float, Field(ge=0.0, lt=1.0)]


class LrSection(Section):
    """The grid of learning rates that every cell is trained over."""

    centre: Annotated[float, Field(gt=0.0)] = Field(1e-2, description="about the best learning rate of the proxies")
    factors: Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], BeforeValidator(_list_to_tuple)] = Field(
        (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), description="multiply the centre"
    )

    def grid(self) -> tuple[float, ...]:
        """The learning rates, ascending."""
        return tuple(sorted({self.centre * factor for factor in self.factors}))


class SpaceSection(Section):
    """The settings to choose between."""

    lr: LrSection = LrSection()
    beta2: Annotated[tuple[Beta2, ...], BeforeValidator(_list_to_tuple)] = Field(
        (0.9, 0.95, 0.98, 0.999), description="AdamW's second decay rates"
    )
    clip: Annotated[tuple[Clip, ...], BeforeValidator(_list_to_tuple)] = Field(
        (0.5, 1.0, 2.0, "off"), description="norm limits; `off`; `p90` follows the 90th percentile"
    )
    warmup: Annotated[tuple[Fraction, ...], BeforeValidator(_list_to_tuple)] = Field(
        (0.0, 0.01, 0.05), description="warm-up as shares of the proxy's steps"
    )


class ProxySection(Section):
    """One small stand-in for the target. What is not given is the target's own."""

    name: Name = Field(description="names the proxy in trials and tables")
    steps: Positive = Field(description="global batches of one trial")
    d_model: Positive | None = Field(None, description="width; heads follow, so that each keeps its size")
    layers: Positive | None = Field(None, description="blocks")
    global_batch: Positive | None = Field(None, description="samples per step")
    micro_batch: Positive | None = Field(None, description="samples per forward pass; at most global_batch")
    sequence_tokens: Positive | None = Field(None, description="tokens per sample")


class ControlSection(Section):
    """Settings known to be bad. A sweep in which they do not fail shows nothing, and is reported void."""

    beta2: Beta2 = Field(0.999, description="AdamW's second decay rate")
    clip: Clip = Field("off", description="norm limit")
    warmup: Fraction = Field(0.0, description="warm-up as a share of the steps")
    lr_factor: Annotated[float, Field(ge=8.0)] = Field(8.0, description="learning rate over `space.lr.centre`")


class SearchSection(Section):
    """How cells are chosen: the core, a map of LR x beta2, for every setting of the rest (clip, warm-up) that is tried."""

    core: Literal["grid", "sobol"] = Field(
        "grid",
        description="beta2s, each over all learning rates: those listed; or `betas` of them, evenly by half-life",
    )
    betas: Positive = Field(4, description="beta2s that `core: sobol` spreads over the range of the list")
    rest: Literal["grid", "sobol", "optuna"] = Field(
        "grid",
        description="pairs of clip and warm-up: all; `settings` of them, evenly; or one by one as Optuna proposes",
    )
    settings: Positive = Field(6, description="pairs of clip and warm-up to try (rest: sobol or optuna)")
    early_stop: Literal["asha", "off"] | None = Field(
        None,
        description="asha: end bare trials that have diverged, and no healthy one; null: asha for bare trials, off for "
        "supervised ones, which their ladder ends",
    )

    @model_validator(mode="before")
    @classmethod
    def _known_by_other_names(cls, given: object) -> object:
        old = sorted({"method", "cells", "batch"} & given.keys()) if isinstance(given, dict) else []
        if old:
            raise ValueError(
                f"search.{old[0]}: the core (LR x beta2) and the rest (clip, warm-up) are chosen apart: say "
                "`core: grid` or `sobol` (with `betas`), and `rest: grid`, `sobol` or `optuna` (with `settings`)"
            )
        return given


class TrialsSection(Section):
    """How trials are run."""

    kind: Literal["bare", "supervised"] = Field(
        "bare", description="bare: one process, the run's own step code; supervised: a Stormsail run with its ladder"
    )
    cpus: Annotated[float, Field(gt=0.0)] = Field(1.0, description="CPUs of one bare trial")
    gpus: Annotated[float, Field(ge=0.0)] = Field(0.0, description="GPUs of one bare trial; above 0 it computes on one")
    max_concurrent: Positive | None = Field(None, description="trials at a time; null: as many as are free for")
    time_limit_s: Seconds = Field(
        3600.0, description="seconds of computing of one trial; one over it is unfinished, which is no divergence"
    )
    max_retries: Count = Field(3, description="restarts of a trial that died by a fault; never counted as divergence")
    checkpoint_steps: Positive = Field(50, description="steps between two checkpoints of a bare trial")


# They decide when trials are run and how often they are tried, and nothing about what a finished one shows.
_OF_NO_RESULT = ("cpus", "max_concurrent", "time_limit_s", "max_retries", "checkpoint_steps")


class SweepConfig(Section):
    """One sweep, whole."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,30}$")] = Field(description="names the sweep")
    target: str = Field(description="YAML file of the run that the answer is for; relative to this file")
    proxies: Annotated[tuple[ProxySection, ...], BeforeValidator(_list_to_tuple)]
    seeds: Annotated[tuple[Count, ...], BeforeValidator(_list_to_tuple)] = (1, 2, 3)
    parametrisation: Literal["mup", "standard"] = Field(
        "mup", description="mup: learning rates carry over to other widths (built-in model and optimizer only)"
    )
    space: SpaceSection = SpaceSection()
    control: ControlSection = ControlSection()
    search: SearchSection = SearchSection()
    trials: TrialsSection = TrialsSection()

    @property
    def stops_early(self) -> bool:
        """Whether trials that have diverged may be ended before their last step."""
        return self.trials.kind == "bare" and self.search.early_stop != "off"

    def measures_like(self, other: SweepConfig) -> bool:
        """Whether trials of both compare: all is equal but what decides on no result, such as a time limit."""
        mine, theirs = (one.model_dump(exclude={"trials": set(_OF_NO_RESULT)}) for one in (self, other))
        return mine == theirs

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        found = list(self._contradictions())
        if found:
            raise ValueError("\n".join(found))
        return self

    def _contradictions(self) -> Iterator[str]:
        space = self.space
        lists = {"proxies": self.proxies, "seeds": self.seeds, "space.lr.factors": space.lr.factors}
        lists |= {"space.beta2": space.beta2, "space.clip": space.clip, "space.warmup": space.warmup}
        for key, values in lists.items():
            if not values:
                yield f"{key}: an empty list leaves nothing to train"
        yield from self._contradictions_of_proxies()
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds: one of them stands there twice"
        if self.trials.kind == "supervised" and any(str(clip).startswith("p") for clip in self._clips()):
            yield "space.clip: percentiles are known to bare trials only; a run has a fixed limit"
        if self.trials.kind == "supervised" and self.trials.gpus:
            yield "trials.gpus: a supervised trial is a run, whose GPUs follow from the target's cluster.accelerator"
        if self.trials.kind == "supervised" and self.search.early_stop == "asha":
            yield "search.early_stop: a supervised trial is ended by its ladder, not by asha: leave it out, or say off"

    def _contradictions_of_proxies(self) -> Iterator[str]:
        names = [proxy.name for proxy in self.proxies]
        if len(set(names)) < len(names):
            yield "proxies: two of them have the same name"
        widths = [proxy.d_model for proxy in self.proxies if proxy.d_model is not None]
        if widths != sorted(widths):
            yield "proxies: list them from the narrowest to the widest: the last one decides on what is handed over"

    def _clips(self) -> Iterator[float | str]:
        yield from self.space.clip
        yield self.control.clip
