"""A norm that leaves its range."""

from __future__ import annotations

from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.precursor import NormPrecursor
from stormsail.workers.detect.rules.row import Level


def test_it_leads_a_spike_that_begins_in_the_norm() -> None:
    rows = calm(norm=0.24)
    said = findings(NormPrecursor(), rows + after(rows, (2.22, 0.95), (2.6, 2.39), (5.1, 960.0)))
    assert said.keys() == {200, 201, 202}
    assert {one.level for one in said.values()} == {Level.WATCH}


def test_it_needs_the_ratio_and_the_score() -> None:
    rows = calm()
    assert not findings(NormPrecursor(), rows + after(rows, (3.0, 0.85)))


def test_a_norm_that_scatters_widely_is_not_called_out_for_it() -> None:
    rows = calm()
    wide = after(rows, *[(3.0, 0.3 * (2.5 if index % 2 else 0.4)) for index in range(150)])
    assert not findings(NormPrecursor(), rows + wide + after(wide, (3.0, 1.2)))


def test_a_new_level_is_learned() -> None:
    rows = calm()
    said = findings(NormPrecursor(), rows + after(rows, *[(3.0, 1.5)] * 100))
    assert len(said) == 21


def test_a_log_without_norms_says_nothing() -> None:
    assert not findings(NormPrecursor(), calm(norm=None))
