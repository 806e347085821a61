"""The whole answer of a sweep, from its plan and its trials: table, edges, control, and whether it counts; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from stormsail.platform.config.builtin_args import PREFIX, TransformerArgs
from stormsail.platform.config.model import RunConfig
from stormsail.tuning.edge import Edge, EdgeFit, edges_of, fit_edges
from stormsail.tuning.objective import (
    CellScore,
    ControlVerdict,
    Measured,
    best_losses,
    judge_control,
    loss_by_lr,
    score_cells,
)
from stormsail.tuning.proxy import tokens_per_step
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, control_trials, trials_of
from stormsail.tuning.suggest import cells_wanted
from stormsail.tuning.transfer import Goal, Handover, Source, hand_over


@dataclass(frozen=True, slots=True)
class Curve:
    """Loss over learning rate of one cell on one proxy.

    Attributes:
        cell: The settings.
        proxy: The proxy.
        points: (learning rate, mean loss that counts, as in the sensitivity), ascending.
    """

    cell: Cell
    proxy: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True)
class ProxyEdge:
    """Where the winner's stable band ends on one proxy.

    Attributes:
        proxy: The proxy.
        width: Its d_model, or None for a model of the user's own.
        edge: The end of the band.
    """

    proxy: str
    width: int | None
    edge: Edge

    @property
    def label(self) -> str:
        """The proxy and its edge in words."""
        width = f" (width {self.width})" if self.width else ""
        return f"{self.proxy}{width}: {self.edge.label}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that a sweep says.

    Attributes:
        name: The sweep.
        done: Trials measured.
        total: Trials that it will have in all.
        rows: The table, best first.
        control: What became of the known-bad control.
        edges: The winner's edge on each proxy.
        fit: Their drift with the width, or None.
        curves: Loss over learning rate.
        handover: What the target gets, or None without a winner.
        restarts: Trials that died by a fault and went on.
        wall_s: Seconds of computing, all trials.
    """

    name: str
    done: int
    total: int
    rows: tuple[CellScore, ...]
    control: ControlVerdict
    edges: tuple[ProxyEdge, ...]
    fit: EdgeFit | None
    curves: tuple[Curve, ...]
    handover: Handover | None
    restarts: int
    wall_s: float

    @property
    def complete(self) -> bool:
        """Whether every trial was measured."""
        return self.done >= self.total

    @property
    def winner(self) -> CellScore | None:
        """The best cell; None while the sweep is void or nothing was stable."""
        if self.control.void:
            return None
        return next((row for row in self.rows if row.verdict == "winner"), None)

    @property
    def standing(self) -> str:
        """One word or sentence: how the sweep stands."""
        if not self.complete:
            return "incomplete"
        if self.control.void:
            return "void"
        return "answered" if self.winner else "nothing was stable"


def build_answer(
    sweep: SweepConfig, target: RunConfig, cells: Sequence[Cell], measured: Mapping[str, Measured]
) -> Answer:
    """Put the answer together.

    Args:
        sweep: The sweep.
        target: The run that it is for.
        cells: All cells proposed so far.
        measured: What was measured, by trial id.
    """
    planned = trials_of(sweep, cells)
    control = control_trials(sweep)
    best = best_losses(measured.values())
    known = [measured[trial.id] for trial in planned if trial.id in measured]
    rows = tuple(score_cells(planned, measured))
    verdict = judge_control(control, measured, best)
    winner = next((row for row in rows if row.verdict == "winner"), None) if not verdict.void else None
    mine = [one for one in known if winner is not None and one.trial.cell == winner.cell]
    found = edges_of(mine, best)
    edges = tuple(
        ProxyEdge(proxy.name, width_of(target, proxy.d_model), found[proxy.name])
        for proxy in sweep.proxies
        if proxy.name in found
    )
    fit = fit_edges([(edge.width, edge.edge) for edge in edges if edge.width])
    per_cell = len(sweep.proxies) * len(sweep.space.lr.grid()) * len(sweep.seeds)
    here = {trial.id for trial in (*planned, *control)}
    return Answer(
        name=sweep.name,
        done=len(here & measured.keys()),
        total=len(control) + cells_wanted(sweep) * per_cell,
        rows=rows,
        control=verdict,
        edges=edges,
        fit=fit,
        curves=tuple(_curves(sweep, cells, known)),
        handover=_handover(sweep, target, winner, mine=mine, edges=edges, fit=fit),
        restarts=sum(one.restarts for one in measured.values()),
        wall_s=sum(one.wall_s for one in measured.values()),
    )


def width_of(target: RunConfig, d_model: int | None) -> int | None:
    """A width, or the target's own; None for a model of the user's own."""
    if target.model.factory != f"{PREFIX}transformer":
        return None
    return d_model or TransformerArgs.model_validate(target.model.args).d_model


def _curves(sweep: SweepConfig, cells: Sequence[Cell], known: Sequence[Measured]) -> list[Curve]:
    found = []
    for proxy in sweep.proxies:
        for cell in cells:
            mine = [one for one in known if one.trial.cell == cell and one.trial.proxy == proxy.name]
            if mine:
                found.append(Curve(cell, proxy.name, tuple(loss_by_lr(mine).items())))
    return found


def _handover(
    sweep: SweepConfig,
    target: RunConfig,
    winner: CellScore | None,
    *,
    mine: Sequence[Measured],
    edges: Sequence[ProxyEdge],
    fit: EdgeFit | None,
) -> Handover | None:
    if winner is None or winner.best_lr is None or not edges:
        return None
    proxy = sweep.proxies[-1]
    at_best = [one for one in mine if one.trial.proxy == proxy.name and one.trial.lr == winner.best_lr]
    source = Source(
        cell=winner.cell,
        lr=winner.best_lr,
        steps=proxy.steps,
        tokens_per_step=tokens_per_step(target, proxy),
        width=width_of(target, proxy.d_model),
        clip_rate=fmean(one.figures.clip_rate for one in at_best),
        edge=edges[-1].edge,
        fit=fit,
        parametrisation=sweep.parametrisation,
        below=tuple(edge.width for edge in edges if edge.width and edge.edge.lr is None),
        batches=tuple(tokens_per_step(target, one) for one in sweep.proxies),
    )
    goal = Goal(
        steps=target.train.steps,
        tokens_per_step=target.train.global_batch * target.data.sequence_tokens,
        width=width_of(target, None),
    )
    return hand_over(source, goal)
