"""Two rows that leave no doubt."""

from __future__ import annotations

from tests.support.rows import after, calm, findings

from stormsail.workers.detect.rules.explosion import Explosion


def test_norm_first_and_then_both_is_seen_at_the_second_row() -> None:
    rows = calm()
    assert findings(Explosion(), rows + after(rows, (3.05, 6.0), (7.7, 6.0))).keys() == {201}


def test_without_norms_the_loss_must_be_far_up_twice() -> None:
    rows = calm(norm=None)
    assert findings(Explosion(), rows + after(rows, (4.8, None), (4.8, None))).keys() == {201}
    assert not findings(Explosion(), rows + after(rows, (4.3, None), (4.3, None)))


def test_one_row_is_never_enough() -> None:
    rows = calm()
    assert not findings(Explosion(), rows + after(rows, (9.0, 100.0), (3.0, 0.3), (9.0, 100.0), (3.0, 0.3)))


def test_norms_alone_are_none() -> None:
    rows = calm()
    assert not findings(Explosion(), rows + after(rows, *[(3.0, 9.0)] * 10))


def test_rows_far_apart_need_less_of_a_rise() -> None:
    rows = calm(stride=20, norm=None)
    assert findings(Explosion(), rows + after(rows, (3.6, None), (3.6, None))).keys() == {rows[-1].step + 40}


def test_what_stays_becomes_normal() -> None:
    rows = calm(norm=None)
    said = findings(Explosion(), rows + after(rows, *[(5.0, None)] * 200))
    assert 0 < len(said) < 70
