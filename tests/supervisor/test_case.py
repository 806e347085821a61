"""What the rows around an incident show before anything is made of it."""

from __future__ import annotations

import pytest
from tests.support.scripted_run import LAST, ONSET, calm, ill, trace_of

from stormsail.platform.diagnosis import Cause, Diagnosis, Sign, Trace
from stormsail.supervisor.case import Case, exploded, growth, open_case, placed, vanishes


def opened(**changes: object) -> Case:
    """An incident whose rows have these values from the onset on."""
    found = open_case(
        trace_of(lambda _now, step: ill(step, **changes) if step >= ONSET else calm(step), 20, LAST), ONSET
    )
    assert found is not None
    return found


def test_it_begins_at_the_first_abnormal_step_and_has_all_rows_from_there() -> None:
    case = opened()
    assert case.onset == ONSET
    assert [row.step for row in case.ill] == list(range(ONSET, LAST + 1))
    assert case.signs == {Sign.LOSS}


def test_rows_that_are_all_calm_have_no_onset_and_too_few_are_no_case() -> None:
    healthy = open_case(trace_of(lambda _now, step: calm(step), 20, LAST), None)
    assert healthy is not None
    assert (healthy.onset, healthy.ill, healthy.signs) == (-1, (), frozenset())
    assert open_case(Trace((), (calm(1), calm(2))), 2) is None


@pytest.mark.parametrize(("norm", "told"), [(200.0, True), (2.0, False)])
def test_a_norm_explodes_by_an_order_of_magnitude(norm: float, told: bool) -> None:
    case = opened(grad_norm=norm)
    assert exploded(case, case.ill) is told
    assert growth(case) == f"the gradient norm rose to {norm:.0f} x its calm level"


@pytest.mark.parametrize(("groups", "told"), [((0.5, 0.001, 0.03, 0.5, 0.1), True), ((0.5, 0.5, 0.4, 0.4, 0.1), False)])
def test_gradients_that_fade_towards_the_first_blocks_are_seen(groups: tuple[float, ...], told: bool) -> None:
    case = opened(groups=groups)
    assert vanishes(case, case.ill) is told


def test_a_verdict_is_placed_at_its_step_its_ranks_and_its_layers_dead_ones_first() -> None:
    case = opened(groups=(0.5, 5.0, 0.0, 0.4, 0.1), bad_rank=3)
    found = placed(case, Diagnosis(Cause.UNKNOWN, 0.0))
    assert (found.onset, found.ranks, found.layers) == (ONSET, (3,), ("blocks.1", "blocks.0"))
