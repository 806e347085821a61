"""Rank 0's rows; what they hold in a real run is tested with the step loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.one_rank import tiny_config

from stormsail.platform.messages import Directive, StepRow
from stormsail.workers.detect.policy import Policy
from stormsail.workers.detect.rules.row import Finding, Kind, Level
from stormsail.workers.detect.stragglers import Slowness
from stormsail.workers.detect.verdict import Verdict, VerdictKind
from stormsail.workers.heartbeat import Details
from stormsail.workers.row_writer import RowWriter
from stormsail.workers.sampling import Governor
from stormsail.workers.updating import Rate, Update
from stormsail.workers.vitals import RankVitals, pack, unpack

FINDING = ("spike", Finding(Level.WATCH, Kind.SPIKE, 7.5, "because"))


class Bench:
    def __init__(self) -> None:
        self.rows: list[StepRow] = []
        self.judge: Any = SimpleNamespace(
            verdict=Verdict(VerdictKind.HEALTHY), slowness=Slowness(), distances={"spike.loss_z": 0.5}
        )
        session: Any = SimpleNamespace(
            config=tiny_config(detect={"forecast": False}),
            policy=Policy(),
            directive=Directive(3),
            position=SimpleNamespace(step=6, applied=5),
            engine=SimpleNamespace(
                precision="bf16", groups=SimpleNamespace(names=("embed", "head")), group_elements=(8.0, 8.0)
            ),
        )
        self.writer = RowWriter(session, self.judge, SimpleNamespace(row=self._take))  # type: ignore[arg-type]

    def _take(self, row: StepRow, details: Details) -> None:
        row.values.update(details())
        self.rows.append(row)

    def write(self, done: Update, *, sampled: bool = False) -> StepRow:
        mine = RankVitals(300.0, (9.0, 16.0), 100, 0, 0, -1, 0, 5)
        self.writer.write(
            5,
            unpack(np.stack([pack(mine)]), nominal_tokens=100),
            done,
            Rate(0.8, 1e-3),
            governor=Governor(10, 0.01),
            sampled=sampled,
            step_s=0.2,
        )
        return self.rows[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_applied_update_has_both_norms_and_the_rate_that_was_used(bench: Bench) -> None:
    row = bench.write(Update("applied", 0.2))
    assert (row.step, row.generation, row.applied, row.loss) == (5, 3, 5, 3.0)
    assert (row.grad_norm, row.clipped_norm, row.lr, row.lr_factor) == (5.0, 1.0, 1e-3, 0.8)
    assert (row.outcome, row.flagged, row.step_s) == ("applied", False, 0.2)


def test_an_update_that_was_thrown_away_used_no_rate(bench: Bench) -> None:
    row = bench.write(Update("dropped", 0.0))
    assert (row.clipped_norm, row.lr) == (0.0, 0.0)


def test_the_share_of_clipped_updates_looks_at_applied_ones_only(bench: Bench) -> None:
    for done in (Update("applied", 0.5), Update("dropped", 0.0), Update("applied", 1.0), Update("applied", 1.0)):
        bench.write(done)
    assert bench.rows[-1].values["clip.share"] == pytest.approx(1 / 3)


def test_layer_groups_are_in_sampled_and_in_flagged_rows(bench: Bench) -> None:
    assert "norm.embed" not in bench.write(Update("applied", 1.0)).values
    sampled = bench.write(Update("applied", 1.0), sampled=True)
    assert (sampled.values["norm.embed"], sampled.values["spike.loss_z"]) == (3.0, 0.5)
    assert sampled.ranks["loss"] == (3.0,)
    bench.judge.verdict = Verdict(VerdictKind.WATCH, findings=(FINDING,))
    flagged = bench.write(Update("applied", 1.0))
    assert (flagged.flagged, flagged.values["norm.head"], flagged.ranks) == (True, 4.0, {})
