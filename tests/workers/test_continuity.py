"""The first losses after a restore must be those that were recorded."""

from __future__ import annotations

from stormsail.workers.continuity import Continuity
from stormsail.workers.detect.beside import Continuity as Limits


def test_equal_losses_are_no_finding() -> None:
    check = Continuity(((10, 2.5), (11, 2.4)), exact=True, limits=Limits())
    assert check.check(10, 2.5) == ""
    assert check.check(11, 2.4) == ""


def test_one_different_bit_breaks_an_exact_continuation() -> None:
    check = Continuity(((10, 2.5),), exact=True, limits=Limits())
    assert "step 10" in check.check(10, 2.5000000000000004)
    assert check.broken


def test_another_world_size_is_allowed_its_rounding() -> None:
    assert Continuity(((10, 2.5),), exact=False, limits=Limits()).check(10, 2.501) == ""


def test_the_loss_of_a_fresh_model_is_noticed_even_without_exactness() -> None:
    assert "not the one that was saved" in Continuity(((400, 2.1),), exact=False, limits=Limits()).check(400, 5.6)


def test_steps_that_nothing_is_known_about_are_passed_over() -> None:
    assert Continuity(((10, 2.5),), exact=True, limits=Limits()).check(12, 99.0) == ""


def test_a_non_finite_loss_is_left_to_the_detectors() -> None:
    assert Continuity(((10, 2.5),), exact=True, limits=Limits()).check(10, float("nan")) == ""


def test_how_far_it_may_differ_is_a_setting() -> None:
    wide = Continuity(((10, 2.5),), exact=False, limits=Limits(tolerance=0.2))
    assert wide.check(10, 2.9) == ""
    narrow = Continuity(((10, 2.5),), exact=False, limits=Limits(tolerance=1e-4))
    assert "recorded was 2.5" in narrow.check(10, 2.501)
