"""Drill faults hit the declared rank at the declared step, as often as declared, and are announced first."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from stormsail.platform.config.drill import Fault
from stormsail.workers.inject import DrillError, Injector

FAULTS: TypeAdapter[Fault] = TypeAdapter(Fault)


class Engine:
    """What a fault does to an engine."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.compute_dtype = dtype
        self.spoilt: list[float] = []
        self.armed: list[str] = []

    def spoil_backward(self, where: str) -> Armed:
        self.armed.append(where)
        return Armed(self)

    def spoil_gradient(self, value: float) -> None:
        self.spoilt.append(value)


class Armed:
    """What takes one of an engine's pending faults back."""

    def __init__(self, engine: Engine) -> None:
        self.remove = engine.armed.pop


class Drill:
    """An injector, and what it announced."""

    def __init__(self, *faults: dict[str, Any], rank: int = 0, fired: dict[int, int] | None = None) -> None:
        self.announced: list[tuple[int, str, int]] = []
        parsed = tuple(FAULTS.validate_python(fault) for fault in faults)
        self.injector = Injector(
            parsed, rank=rank, fired=fired or {}, announce=lambda *what: self.announced.append(what)
        )

    def spoilt_steps(self, steps: range, engine: Engine | None = None) -> list[int]:
        used = engine or Engine()
        hit = []
        for step in steps:
            before = len(used.spoilt)
            self.injector.after_backward(used, step)  # type: ignore[arg-type] # the two members that are used
            hit += [step] if len(used.spoilt) > before else []
        return hit


class TestKill:
    @pytest.fixture
    def killed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
        signals: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
        return signals

    def test_the_rank_dies_at_its_step_once_and_said_so_before(self, killed: list[tuple[int, int]]) -> None:
        drill = Drill({"kind": "kill", "step": 5})
        for step in (4, 5, 5, 6):
            drill.injector.before_step(step)
        assert killed == [(os.getpid(), signal.SIGKILL)]
        assert drill.announced == [(0, "kill", 5)]

    def test_another_rank_lives(self, killed: list[tuple[int, int]]) -> None:
        Drill({"kind": "kill", "step": 5, "rank": 1}).injector.before_step(5)
        assert killed == []

    def test_what_fired_in_an_earlier_attempt_does_not_come_again(self, killed: list[tuple[int, int]]) -> None:
        Drill({"kind": "kill", "step": 5}, fired={0: 1}).injector.before_step(5)
        assert killed == []

    @pytest.mark.parametrize("during", ["step", "evaluate", "save"])
    def test_one_strikes_where_it_is_to_and_nowhere_else(self, killed: list[tuple[int, int]], during: str) -> None:
        injector = Drill({"kind": "kill", "step": 5, "during": during}).injector
        places = {
            "step": injector.before_step,
            "evaluate": injector.during_evaluation,
            "save": injector.during_save,
        }
        for name, place in places.items():
            place(4)
            if name != during:
                place(5)
        assert killed == []
        places[during](5)
        assert len(killed) == 1


class TestRaise:
    def test_it_raises_at_its_step_every_time(self) -> None:
        drill = Drill({"kind": "raise", "step": 5})
        for _ in range(2):
            with pytest.raises(DrillError, match="step 5"):
                drill.injector.before_step(5)
        assert len(drill.announced) == 2

    def test_it_raises_only_so_many_times(self) -> None:
        drill = Drill({"kind": "raise", "step": 5, "times": 1}, fired={0: 1})
        drill.injector.before_step(5)
        assert drill.announced == []


SURGE = {"kind": "lr_instability", "step": 5, "steps": 3, "scale": 40.0}


class TestLearningRate:
    def test_it_is_scaled_inside_the_window_only(self) -> None:
        drill = Drill(SURGE)
        assert [drill.injector.lr_scale(step, lr_factor=1.0) for step in range(4, 9)] == [1.0, 40.0, 40.0, 40.0, 1.0]

    def test_a_rate_that_the_ladder_has_cut_is_left_alone(self) -> None:
        drill = Drill(SURGE)
        assert drill.injector.lr_scale(5, lr_factor=0.8) == 1.0
        assert drill.announced == []

    @given(st.integers(0, 20), st.sampled_from([1.0, 0.8]))
    def test_all_ranks_agree(self, step: int, factor: float) -> None:
        scales = {Drill(SURGE, rank=rank).injector.lr_scale(step, lr_factor=factor) for rank in (0, 1)}
        assert len(scales) == 1

    def test_only_rank_0_says_so_at_the_first_step(self) -> None:
        for rank, announced in ((0, [(0, "lr_instability", 5)]), (1, [])):
            drill = Drill(SURGE, rank=rank)
            for step in range(4, 9):
                drill.injector.lr_scale(step, lr_factor=1.0)
            assert drill.announced == announced


class TestGradients:
    def test_an_overflow_spoils_every_step_of_its_window_and_is_announced_once(self) -> None:
        drill = Drill({"kind": "bf16_overflow", "step": 5, "steps": 3})
        assert drill.spoilt_steps(range(4, 9)) == [5, 6, 7]
        assert drill.announced == [(0, "bf16_overflow", 5)]

    def test_an_overflow_does_not_happen_in_fp32(self) -> None:
        drill = Drill({"kind": "bf16_overflow", "step": 5})
        assert drill.spoilt_steps(range(4, 9), Engine(torch.float32)) == []
        assert drill.announced == []

    def test_a_value_that_is_not_finite_does_not_care_for_precision(self) -> None:
        drill = Drill({"kind": "nonfinite", "step": 5, "steps": 2})
        assert drill.spoilt_steps(range(4, 9), Engine(torch.float32)) == [5, 6]

    def test_it_comes_only_so_many_times_over_all_attempts(self) -> None:
        fault = {"kind": "nonfinite", "step": 5, "steps": 4, "times": 3}
        first = Drill(fault)
        assert first.spoilt_steps(range(5, 7)) == [5, 6]
        assert Drill(fault, fired={0: 2}).spoilt_steps(range(5, 9)) == [5]

    def test_only_its_rank_is_hit(self) -> None:
        assert Drill({"kind": "nonfinite", "step": 5, "rank": 1}).spoilt_steps(range(9)) == []
        assert Drill({"kind": "nonfinite", "step": 5, "rank": 1}, rank=1).spoilt_steps(range(9)) == [5]


class TestBeforeRanksSumUp:
    @pytest.mark.parametrize("where", ["gradient", "loss"])
    def test_passes_are_spoilt_from_before_until_after_the_backward(self, where: str) -> None:
        drill = Drill({"kind": "nonfinite", "step": 5, "where": where})
        engine = Engine()
        seen = []
        for step in range(4, 7):
            drill.injector.before_backward(engine, step)  # type: ignore[arg-type] # the two members that are used
            seen.append(list(engine.armed))
            drill.injector.after_backward(engine, step)  # type: ignore[arg-type] # as above
        assert seen == [[], [where], []]
        assert (engine.armed, engine.spoilt) == ([], [])
        assert drill.announced == [(0, "nonfinite", 5)]

    def test_a_pass_that_did_not_come_to_its_end_leaves_nothing_armed(self) -> None:
        drill = Drill({"kind": "nonfinite", "step": 5, "where": "loss"})
        engine = Engine()
        drill.injector.before_backward(engine, 5)  # type: ignore[arg-type] # as above
        drill.injector.disarm()
        assert engine.armed == []

    def test_only_its_rank_and_only_so_many_times(self) -> None:
        fault = {"kind": "nonfinite", "step": 5, "steps": 3, "where": "loss", "rank": 1, "times": 2}
        for rank, wanted in ((0, 0), (1, 2)):
            drill = Drill(fault, rank=rank)
            for step in range(5, 8):
                drill.injector.before_backward(Engine(), step)  # type: ignore[arg-type] # as above
            assert len(drill.announced) == wanted


def test_a_run_without_faults_is_left_alone() -> None:
    drill = Drill()
    drill.injector.before_step(1)
    drill.injector.during_save(1)
    assert drill.injector.lr_scale(1, lr_factor=1.0) == 1.0
    assert drill.spoilt_steps(range(3)) == []
