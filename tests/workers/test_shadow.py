"""Shadow mode on the workers' side."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stormsail.platform.messages import FaultKind
from stormsail.workers.detect.verdict import Verdict, VerdictKind
from stormsail.workers.shadow import Told, softened

INCIDENT = Verdict(VerdictKind.INCIDENT, FaultKind.SPIKE, 57, 14.0, {}, "z 14")


def test_an_outlier_that_would_be_skipped_or_clipped_is_applied() -> None:
    skipped = replace(INCIDENT, kind=VerdictKind.SKIP)
    assert softened(skipped, nonfinite=False).kind is VerdictKind.WATCH
    clipped = Verdict(VerdictKind.WATCH, clip_to=0.5)
    assert softened(clipped, nonfinite=False).clip_to == math.inf
    dropped = Verdict(VerdictKind.DROP)
    assert softened(dropped, nonfinite=True).kind is VerdictKind.DROP


@pytest.mark.parametrize(("nonfinite", "kind"), [(False, VerdictKind.WATCH), (True, VerdictKind.DROP)])
def test_training_goes_on_and_bad_numbers_are_never_applied(nonfinite: bool, kind: VerdictKind) -> None:
    soft = softened(INCIDENT, nonfinite=nonfinite)
    assert (soft.kind, soft.reason, soft.onset) == (kind, "z 14", 57)


def test_what_follows_closely_is_the_same_trouble() -> None:
    told = Told(quiet_steps=50)
    assert [step for step in (10, 11, 40, 90, 141, 150) if told.is_news(step)] == [10, 141]


def test_after_going_back_everything_is_news() -> None:
    told = Told(quiet_steps=50)
    assert told.is_news(100)
    assert told.is_news(40)
