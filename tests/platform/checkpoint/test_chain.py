"""When a chain goes on and when it ends, as a table and for any history."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.chain import Chain, ChainPolicy, choose, extend
from stormsail.platform.messages import CheckpointRef

BASE = CheckpointRef(1, 100)
CHAIN = Chain(BASE, world_size=2, keyframe_bytes=1000, deltas=3, last_bytes=900)


def test_a_sound_keyframe_is_built_on() -> None:
    choice = choose(CHAIN, generation=1, world_size=2)
    assert (choice.base, choice.reason, choice.warning) == (BASE, "", False)


@pytest.mark.parametrize(
    ("chain", "generation", "world_size", "problem", "reason"),
    [
        (Chain(), 1, 2, "", "first"),
        (CHAIN, 1, 3, "", "3 workers save now, 2 wrote"),
        (CHAIN, 2, 2, "", "generation 2 begins"),
        (CHAIN, 1, 2, "packs/x is missing", "step 100 cannot be built on: packs/x is missing"),
        (replace(CHAIN, deltas=10), 1, 2, "", "10 differences"),
        (replace(CHAIN, last_bytes=970), 1, 2, "", "97% of its keyframe"),
    ],
)
def test_anything_else_makes_a_keyframe_and_says_why(
    chain: Chain, generation: int, world_size: int, problem: str, reason: str
) -> None:
    choice = choose(chain, generation=generation, world_size=world_size, problem=problem)
    assert choice.base is None
    assert reason in choice.reason
    assert choice.warning == bool(problem)


def test_just_below_the_limits_still_builds() -> None:
    chain = replace(CHAIN, deltas=9, last_bytes=969)
    assert choose(chain, generation=1, world_size=2).base == BASE
    assert choose(chain, generation=1, world_size=2, policy=ChainPolicy(max_deltas=9)).base is None
    assert choose(chain, generation=1, world_size=2, policy=ChainPolicy(max_ratio=0.9)).base is None


def test_a_keyframe_begins_a_new_chain() -> None:
    ref = CheckpointRef(1, 140)
    choice = choose(replace(CHAIN, deltas=10), generation=1, world_size=2)
    assert extend(CHAIN, choice, ref=ref, world_size=2, stored_bytes=1010) == Chain(ref, 2, 1010)


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(1, 1200)), min_size=1, max_size=60))
def test_no_chain_is_ever_longer_than_allowed_nor_built_on_doubt(saves: list[tuple[int, bool, int]]) -> None:
    """Each save: world size, whether something is wrong, and its size."""
    chain = Chain()
    on_it = 0
    for number, (world_size, wrong, size) in enumerate(saves):
        choice = choose(chain, generation=1, world_size=world_size, problem="gone" if wrong else "")
        assert choice == choose(chain, generation=1, world_size=world_size, problem="gone" if wrong else "")
        assert (choice.base is None) == bool(choice.reason)
        if choice.base is not None:
            assert not wrong
            assert world_size == chain.world_size
            assert choice.base == chain.keyframe
        on_it = 0 if choice.base is None else on_it + 1
        assert on_it <= 10
        chain = extend(chain, choice, ref=CheckpointRef(1, number), world_size=world_size, stored_bytes=size)
