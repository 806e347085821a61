"""What becomes of a step's gradient."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.one_rank import tiny_config

from stormsail.platform.errors import InternalError
from stormsail.platform.messages import Directive, LrEvent
from stormsail.workers.detect.verdict import VerdictKind
from stormsail.workers.inject import Injector
from stormsail.workers.updating import set_rate, update
from stormsail.workers.vitals import RankVitals, Vitals, pack, unpack


class Engine:
    """Records what is asked of it."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.asked: list[tuple[str, float]] = []
        self._accepts = accepts

    def drop(self) -> None:
        self.asked.append(("drop", 0.0))

    def scale_gradients(self, factor: float) -> None:
        self.asked.append(("scale", factor))

    def set_learning_rate(self, lr: float) -> float:
        self.asked.append(("rate", lr))
        return lr

    def apply(self) -> bool:
        self.asked.append(("apply", 0.0))
        return self._accepts


def session(engine: Engine, *, clip_norm: float | None = 1.0, directive: Directive | None = None) -> Any:
    config = tiny_config(train={"steps": 12, "global_batch": 4, "micro_batch": 2, "clip_norm": clip_norm})
    return SimpleNamespace(engine=engine, config=config, directive=directive or Directive(1))


def seen(norm: float, tokens: int = 100) -> Vitals:
    mine = RankVitals(300.0, (norm * norm,), tokens, 0, 0, -1, 0, 5)
    return unpack(np.stack([pack(mine)]), nominal_tokens=100)


@pytest.mark.parametrize(
    ("norm", "clip_norm", "clip_to", "factor"),
    [
        (0.5, 1.0, math.inf, 1.0),
        (4.0, 1.0, math.inf, 0.25),
        (4.0, None, math.inf, 1.0),
        (4.0, None, 2.0, 0.5),
        (4.0, 1.0, 0.4, 0.1),
        (4.0, 1.0, 3.0, 0.25),
    ],
)
def test_a_gradient_is_clipped_to_the_lower_of_both_limits(
    norm: float, clip_norm: float | None, clip_to: float, factor: float
) -> None:
    engine = Engine()
    done = update(session(engine, clip_norm=clip_norm), 5, seen(norm), VerdictKind.WATCH, clip_to)
    assert (done.outcome, done.applied) == ("applied", True)
    assert done.clip == pytest.approx(factor)
    assert engine.asked == ([] if factor == 1.0 else [("scale", pytest.approx(factor))]) + [("apply", 0.0)]


def test_missing_tokens_are_made_up_for() -> None:
    engine = Engine()
    update(session(engine), 5, seen(0.1, tokens=50), VerdictKind.HEALTHY, math.inf)
    assert engine.asked[0] == ("scale", 2.0)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(VerdictKind.DROP, "dropped"), (VerdictKind.EMPTY, "empty"), (VerdictKind.SKIP, "skipped")],
)
def test_what_is_not_to_be_applied_is_thrown_away(kind: VerdictKind, outcome: str) -> None:
    engine = Engine()
    done = update(session(engine), 5, seen(9.0), kind, math.inf)
    assert (done.outcome, done.applied, done.clip) == (outcome, False, 0.0)
    assert engine.asked == [("drop", 0.0)]


def test_a_refused_update_is_our_bug() -> None:
    with pytest.raises(InternalError, match="step 5"):
        update(session(Engine(accepts=False)), 5, seen(0.1), VerdictKind.HEALTHY, math.inf)


def test_the_rate_is_the_schedule_times_the_factor_in_force() -> None:
    engine = Engine()
    quiet = Injector((), rank=0, fired={}, announce=lambda *_: None)
    plain = set_rate(session(engine), quiet, 5)
    cut = set_rate(session(engine, directive=Directive(2, lr_events=(LrEvent(0, 0.8, 2),))), quiet, 5)
    assert (plain.factor, cut.factor) == (1.0, 0.8)
    assert cut.used == pytest.approx(0.8 * plain.used)
    assert engine.asked == [("rate", plain.used), ("rate", cut.used)]
