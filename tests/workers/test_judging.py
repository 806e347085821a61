"""What rank 0 says about a step."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stormsail.platform.data.order import DataOrder
from stormsail.platform.messages import Directive, FaultKind
from stormsail.workers.continuity import Continuity
from stormsail.workers.detect.beside import Continuity as Limits
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.state import DetectorState
from stormsail.workers.detect.verdict import VerdictKind
from stormsail.workers.judging import Judge
from stormsail.workers.vitals import RankVitals, Times, Vitals, pack, unpack

CALM = RankVitals(
    loss_sum=300.0,
    squares=(0.09, 0.16),
    tokens=100,
    nonfinite_gradients=0,
    nonfinite_state=0,
    first_parameter=-1,
    stop=0,
    step=0,
    times=Times(data_s=0.01, compute_s=0.1),
)


class Lines:
    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def line(self, kind: str, /, **fields: Any) -> None:
        self.said.append((kind, fields))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


class Bench:
    """A judge with a session that holds just what it looks at."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.session: Any = SimpleNamespace(
            detector=DetectorState(),
            unproven=False,
            continuity=Continuity((), exact=False, limits=Limits()),
            directive=Directive(4),
            order=DataOrder(1000, 1, skip=((4, 6),)),
            config=SimpleNamespace(train=SimpleNamespace(global_batch=8)),
            engine=SimpleNamespace(
                groups=SimpleNamespace(names=("embed", "blocks.0")),
                pieces=(SimpleNamespace(name="embed.weight"), SimpleNamespace(name="blocks.0.weight")),
            ),
        )
        self.judge = Judge(self.session, Policy(), self.lines)  # type: ignore[arg-type] # the one method that is used
        self.step = -1

    def see(self, *ranks: RankVitals, outcome: str = "applied", sampled: bool = False) -> VerdictKind:
        self.step += 1
        seen = together(*ranks)
        kind = self.judge.opinion(self.step, seen, sampled=sampled).kind
        self.judge.note(self.step, seen, outcome)
        return kind

    def calm(self, steps: int) -> None:
        for step in range(steps):
            wave = 1.0 + 0.01 * math.sin(step)
            self.see(*(dataclasses.replace(CALM, loss_sum=300.0 * wave) for _ in range(2)))


def together(*ranks: RankVitals) -> Vitals:
    return unpack(np.stack([pack(rank) for rank in ranks or (CALM, CALM)]), nominal_tokens=200)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_healthy_step_is_not_worth_a_line(bench: Bench) -> None:
    bench.calm(50)
    assert bench.lines.said == []


def test_a_flagged_step_is_said_once_with_detector_layers_and_batch(bench: Bench) -> None:
    bench.calm(60)
    high = dataclasses.replace(CALM, loss_sum=600.0, squares=(0.09, 16.0), batch=3)
    assert bench.see(high, high) is VerdictKind.WATCH
    bench.see(high, high)
    kinds = bench.lines.kinds()
    detectors = [fields["detector"] for kind, fields in bench.lines.said if kind == "spike.watch"]
    assert kinds.count("spike.watch") == len(set(detectors))
    fields = next(fields for _, fields in bench.lines.said if fields["detector"] == "spike")
    assert (fields["step"], fields["kind"], fields["batch"]) == (60, "spike", 6)
    assert fields["layers"].startswith("blocks.0 10.0 x")
    assert fields["samples"] == [60 * 8 + 2, 61 * 8 + 1]  # two positions before it are left out


def test_a_dropped_update_names_rank_and_parameter(bench: Bench) -> None:
    bad = dataclasses.replace(CALM, squares=(0.09, math.inf), nonfinite_gradients=2, first_parameter=1)
    assert bench.see(CALM, bad, outcome="dropped") is VerdictKind.DROP
    kind, fields = bench.lines.said[0]
    assert (kind, fields["rank"], fields["first_parameter"], fields["count"]) == (
        "update.dropped",
        1,
        "blocks.0.weight",
        2,
    )


def test_an_incident_carries_detector_layers_ranks_and_batch(bench: Bench) -> None:
    bad = dataclasses.replace(CALM, squares=(math.inf, 1.0), nonfinite_gradients=1, first_parameter=0, batch=9)
    for _ in range(3):
        bench.see(CALM, bad, outcome="dropped")
    incident = bench.judge.incident(2, together(CALM, bad))
    assert (incident.kind, incident.generation, incident.step, incident.onset) == (FaultKind.NONFINITE, 4, 2, 0)
    assert incident.evidence["ranks"] == [1]
    assert (incident.evidence["parameter"], incident.evidence["batch"]) == ("embed.weight", 9)
    assert incident.evidence["samples"] == [18, 25]
    dropped = [fields["samples"] for kind, fields in bench.lines.said if kind == "update.dropped"]
    assert dropped == [[0, 9], [10, 17], [18, 25]]


def test_losses_that_do_not_come_again_are_a_resume_fault(bench: Bench) -> None:
    bench.session.continuity = Continuity(((0, 5.0),), exact=False, limits=Limits())
    assert bench.see(CALM, CALM) is VerdictKind.INCIDENT
    assert bench.judge.verdict.fault is FaultKind.RESUME_FAULT
    assert bench.judge.verdict.evidence["loss"] == 3.0
    assert "grad_norm" in bench.judge.verdict.evidence


def test_an_unproven_state_is_judged_from_the_first_finite_step(bench: Bench) -> None:
    bench.session.unproven = True
    bench.see(dataclasses.replace(CALM, nonfinite_gradients=1), CALM, outcome="dropped")
    assert bench.session.unproven
    bench.see(CALM, CALM)
    assert not bench.session.unproven


def test_ranks_that_disagree_are_named_with_what_they_disagree_in(bench: Bench) -> None:
    bench.judge.disagreement(7, (2,), [{"rates": [1e-3]}, {"rates": [1e-3]}, {"rates": [9e-4]}])
    incident = bench.judge.incident(7, together(CALM, CALM, CALM))
    assert (incident.kind, incident.onset) == (FaultKind.DESYNC, 7)
    assert (incident.evidence["ranks"], incident.evidence["fields"]) == ([2], "rates")
    assert "0.0009" in str(incident.evidence["plans"])


def test_a_slow_rank_is_said_seldom(bench: Bench) -> None:
    slow = dataclasses.replace(CALM, times=Times(data_s=0.01, compute_s=0.3))
    for _ in range(100):
        bench.see(CALM, slow)
    assert [fields["rank"] for kind, fields in bench.lines.said if kind == "rank.slow"] == [1]
    bench.judge.begin()  # a rollback: the steps until the old ones are reached again must not be silent
    bench.step = 9
    bench.see(CALM, slow)
    assert bench.lines.kinds().count("rank.slow") == 2


def test_sampled_steps_say_how_far_they_lie_from_the_baselines(bench: Bench) -> None:
    bench.calm(40)
    bench.see(CALM, CALM, sampled=True)
    assert bench.judge.distances["spike.norm_ratio"] == pytest.approx(1.0)
    assert abs(bench.judge.distances["spike.loss_z"]) < 3.0


def test_after_a_directive_a_finding_is_news_again(bench: Bench) -> None:
    bench.calm(60)
    high = dataclasses.replace(CALM, loss_sum=600.0)
    bench.see(high, high)
    before = len(bench.lines.said)
    bench.judge.begin()
    bench.see(high, high)
    assert len(bench.lines.said) > before
