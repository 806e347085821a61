"""Drill faults, carried out: what `drill.faults` declares is done here, at the declared step and rank.

A fault is announced to the supervisor when it fires, so that the report can match it with the repair, and
so that a fault that should happen once does not come back with the next attempt.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

from stormsail.platform.config.drill import (
    Bf16OverflowFault,
    Fault,
    KillFault,
    LrInstabilityFault,
    NonfiniteFault,
    RaiseFault,
)
from stormsail.workers.engine import ZeroEngine


class DrillError(RuntimeError):
    """What a `raise` fault raises; it stands for an error in user code."""


class Injector:
    """Carries out the drill faults of this rank; `during_save` is called by the thread that saves, the rest by training.

    Args:
        faults: As declared, in order.
        rank: This rank.
        fired: How often each fault has fired in earlier attempts, by index.
        announce: Records a firing; called with (index, kind, step), and must have been heard when it returns.
    """

    def __init__(
        self,
        faults: tuple[Fault, ...],
        *,
        rank: int,
        fired: dict[int, int],
        announce: Callable[[int, str, int], None],
    ) -> None:
        self._faults = faults
        self._rank = rank
        self._fired = dict(fired)
        self._announce = announce
        self._armed: list[RemovableHandle] = []

    def unheard(self) -> Injector:
        """The same faults for a replay: they act as they would now, but nobody is told and nothing is counted."""
        return Injector(self._faults, rank=self._rank, fired=self._fired, announce=lambda _index, _kind, _step: None)

    def before_step(self, step: int) -> None:
        """Kill or raise, if this is the step and the rank for it."""
        for index, fault in enumerate(self._faults):
            if isinstance(fault, KillFault) and fault.during == "step":
                self._kill_if_due(index, fault, step)
            if isinstance(fault, RaiseFault) and fault.step == step and self._due(index, fault.rank, fault.times):
                self._fire(index, fault.kind, step)
                raise DrillError(f"drill: an error in user code at step {step}")

    def during_evaluation(self, step: int) -> None:
        """Kill, if the evaluation of the state after so many steps is the one that must not get through."""
        self._kill_during("evaluate", step)

    def during_save(self, step: int) -> None:
        """Kill, if the checkpoint of this step is the one that must not get through."""
        self._kill_during("save", step)

    def lr_scale(self, step: int, *, lr_factor: float) -> float:
        """What the applied learning rate is multiplied by at this step; all ranks agree, it is a pure function."""
        scale = 1.0
        for index, fault in enumerate(self._faults):
            if isinstance(fault, LrInstabilityFault) and _within(step, fault.step, fault.steps) and lr_factor == 1.0:
                scale *= fault.scale
                if self._rank == 0 and step == fault.step:
                    self._fire(index, fault.kind, step)
        return scale

    def before_backward(self, engine: ZeroEngine, step: int) -> None:
        """Let this rank's passes give NaN until `after_backward`, if this is the step and the rank for it."""
        for index, fault in enumerate(self._faults):
            if (
                isinstance(fault, NonfiniteFault)
                and fault.where != "shard"
                and self._strikes(index, fault, step, fault.times)
            ):
                self._armed.append(engine.spoil_backward(fault.where))

    def after_backward(self, engine: ZeroEngine, step: int) -> None:
        """Spoil this rank's gradient shard, if this is the step and the rank for it."""
        self.disarm()
        for index, fault in enumerate(self._faults):
            due = False
            if isinstance(fault, Bf16OverflowFault):
                due = engine.compute_dtype != torch.float32 and self._strikes(index, fault, step, None)
            elif isinstance(fault, NonfiniteFault) and fault.where == "shard":
                due = self._strikes(index, fault, step, fault.times)
            if due:
                engine.spoil_gradient(float("inf"))

    def disarm(self) -> None:
        """Passes that were to give NaN are ordinary ones again."""
        while self._armed:
            self._armed.pop().remove()

    def _strikes(self, index: int, fault: Bf16OverflowFault | NonfiniteFault, step: int, times: int | None) -> bool:
        """Whether it is due; what counts is told at each step, the rest at its first."""
        if not (_within(step, fault.step, fault.steps) and self._due(index, fault.rank, times)):
            return False
        if step == fault.step or times is not None:
            self._fire(index, fault.kind, step)
        return True

    def _kill_during(self, what: str, step: int) -> None:
        for index, fault in enumerate(self._faults):
            if isinstance(fault, KillFault) and fault.during == what:
                self._kill_if_due(index, fault, step)

    def _kill_if_due(self, index: int, fault: KillFault, step: int) -> None:
        if fault.step == step and self._due(index, fault.rank, times=1):
            self._fire(index, fault.kind, step)
            os.kill(os.getpid(), signal.SIGKILL)

    def _due(self, index: int, rank: int, times: int | None) -> bool:
        return rank == self._rank and (times is None or self._fired.get(index, 0) < times)

    def _fire(self, index: int, kind: str, step: int) -> None:
        self._fired[index] = self._fired.get(index, 0) + 1
        self._announce(index, kind, step)


def _within(step: int, start: int, steps: int) -> bool:
    return start <= step < start + steps
