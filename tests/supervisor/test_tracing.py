"""What a diagnosis reads of a run's rows and of the incident itself."""

from __future__ import annotations

import math

from tests.support.run_kit import step_row

from stormsail.platform.messages import FaultKind, Incident
from stormsail.supervisor.tracing import trace_of

LAYERS = {"norm.embed": 0.5, "norm.blocks.0": 0.4, "norm.zero_share": 0.1, "update.rms": 0.2}


def incident(step: int = 3, **evidence: float | str | list[int]) -> Incident:
    return Incident(1, step, step - 1, FaultKind.SPIKE, 9.0, evidence)


def test_the_incidents_own_step_comes_last_with_what_its_evidence_says() -> None:
    trace = trace_of([step_row(2)], incident(loss=4.5, grad_norm="inf", nonfinite_gradients=3, rank=1, batch=77))
    own = trace.rows[-1]
    assert (own.step, own.loss, own.grad_norm, own.nonfinite, own.bad_rank) == (3, 4.5, math.inf, 3, 1)
    assert (own.batch, own.lr) == (77, 0.0)


def test_no_row_is_made_up_where_the_evidence_has_no_loss() -> None:
    assert [row.step for row in trace_of([step_row(2)], incident(detector="plan")).rows] == [2]


def test_layers_are_known_where_a_row_was_sampled() -> None:
    trace = trace_of([step_row(1, values=LAYERS), step_row(2)], incident(loss=1.0, grad_norm=1.0))
    assert trace.names == ("embed", "blocks.0")
    assert [row.groups for row in trace.rows] == [(0.5, 0.4), (), ()]
    assert [row.zero_share for row in trace.rows] == [0.1, -1.0, -1.0]
    assert trace.rows[0].update_rms == 0.2


def test_the_first_row_of_a_generation_is_one_behind_a_load() -> None:
    rows = [step_row(0), step_row(1, generation=2), step_row(2, generation=2)]
    assert [row.restored for row in trace_of(rows, incident(loss=1.0, grad_norm=1.0)).rows] == [
        False,
        True,
        False,
        True,
    ]


def test_a_dropped_update_is_not_finite_and_rows_behind_the_incident_are_left_out() -> None:
    trace = trace_of([step_row(2, outcome="dropped"), step_row(3), step_row(4)], incident(loss=1.0, grad_norm=1.0))
    assert [(row.step, row.nonfinite) for row in trace.rows] == [(2, 1), (3, 0)]
