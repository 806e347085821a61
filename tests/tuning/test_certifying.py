"""What a sweep vouches for."""

from __future__ import annotations

from stormsail.platform.certificate import moved_keys
from stormsail.platform.config.model import RunConfig
from stormsail.tuning.answer import Answer
from stormsail.tuning.certifying import certify


def test_it_tells_what_was_seen_and_what_was_not(answer: Answer, target: RunConfig) -> None:
    assert answer.winner is not None
    made = certify(answer, answer.winner, target, sweep="small@1", made_s=1.0)
    seen, unseen = " ".join(made.evidence), " ".join(made.limits)
    assert "12 of 12 trials stable (95 % interval 76% to 100%)" in seen
    assert "failed in 4 of 4" in seen
    assert "width 32, 48" in seen
    assert "never proves" in unseen
    assert "±12 points" in unseen
    assert moved_keys(made, target) == ()
