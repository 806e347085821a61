"""What a sweep vouches for."""

from __future__ import annotations

import pytest

from stormsail.platform.certificate import moved_keys
from stormsail.platform.config.model import RunConfig
from stormsail.tuning.answer import Answer
from stormsail.tuning.certifying import certify
from stormsail.tuning.transfer import Value

VALUES = (Value("optimizer.lr", 0.01, "best of the winner"),)


def test_it_tells_what_was_seen_and_what_was_not(answer: Answer, target: RunConfig) -> None:
    assert answer.winner is not None
    made = certify(answer, answer.winner, target, values=VALUES, kind="bare", sweep="small@1", made_s=1.0)
    seen, unseen = " ".join(made.evidence), " ".join(made.limits)
    assert "12 of 12 trials stable (95 % interval 76% to 100%)" in seen
    assert "failed in 4 of 4" in seen
    assert "Largest stable learning rate on w32 (width 32): " in seen
    assert "optimizer.lr = 0.01: best of the winner" in seen
    assert "never proves" in unseen
    assert "±12 points" in unseen
    assert moved_keys(made, target) == ()


@pytest.mark.parametrize(
    ("kind", "precision", "said"),
    [
        ("bare", "bf16", "the ladder; the target's bf16 was not tried."),
        ("bare", "fp32", "without DeepSpeed and the ladder."),
        ("supervised", "bf16", ""),
    ],
)
def test_it_tells_in_what_the_trials_computed(
    answer: Answer, target: RunConfig, kind: str, precision: str, said: str
) -> None:
    assert answer.winner is not None
    config = target.model_copy(update={"train": target.train.model_copy(update={"precision": precision})})
    limits = certify(answer, answer.winner, config, values=(), kind=kind, sweep="s@1", made_s=1.0).limits
    assert [text.endswith(said) for text in limits if "fp32" in text] == ([True] if said else [])
