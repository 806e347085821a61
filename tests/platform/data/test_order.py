"""The data order: every sample once per epoch, whatever the world looks like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.data.order import PADDING, DataOrder, merge_ranges, micro_steps, rank_share

SAMPLES = st.integers(1, 400)
SEEDS = st.integers(0, 2**70)
SKIPS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=5
).map(tuple)


def _consumed(order: DataOrder, steps: int, global_batch: int) -> list[int]:
    return [int(p) for step in range(steps) for p in order.positions(step, global_batch)]


@given(samples=SAMPLES, seed=SEEDS, epoch=st.integers(0, 5))
def test_an_epoch_uses_each_sample_exactly_once(samples: int, seed: int, epoch: int) -> None:
    ids = DataOrder(samples, seed).sample_ids(epoch, samples)
    assert sorted(ids.tolist()) == list(range(samples))


@given(samples=SAMPLES, seed=SEEDS, batch=st.integers(1, 50), step=st.integers(0, 10**9))
def test_a_step_is_a_pure_function_of_its_number(samples: int, seed: int, batch: int, step: int) -> None:
    first = DataOrder(samples, seed).sample_ids(step, batch)
    again = DataOrder(samples, seed).sample_ids(step, batch)
    assert np.array_equal(first, again)
    assert first.dtype == np.int64


@given(samples=st.integers(1, 60), seed=SEEDS, batch=st.integers(1, 50))
def test_batches_that_reach_over_an_epoch_end_still_cover_each_epoch(samples: int, seed: int, batch: int) -> None:
    order = DataOrder(samples, seed)
    steps = -(-2 * samples // batch)
    ids = [int(i) for step in range(steps) for i in order.sample_ids(step, batch)]
    for epoch in range(2):
        assert sorted(ids[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


@given(samples=SAMPLES, seed=SEEDS, batch=st.integers(1, 40), factor=st.integers(2, 4))
def test_the_order_does_not_depend_on_how_it_is_cut_into_batches(
    samples: int, seed: int, batch: int, factor: int
) -> None:
    order = DataOrder(samples, seed)
    large = order.sample_ids(1, batch * factor)
    small = np.concatenate([order.sample_ids(factor + i, batch) for i in range(factor)])
    assert np.array_equal(large, small)


@given(skip=SKIPS, batch=st.integers(1, 30), steps=st.integers(1, 30))
def test_skipping_leaves_out_the_skipped_positions_and_nothing_else(
    skip: tuple[tuple[int, int], ...], batch: int, steps: int
) -> None:
    left_out = {position for start, stop in skip for position in range(start, stop)}
    found = _consumed(DataOrder(100, 3, skip), steps, batch)
    expected = [position for position in range(1000) if position not in left_out][: steps * batch]
    assert found[: len(expected)] == expected
    assert len(found) == steps * batch


@given(skip=SKIPS)
def test_the_way_a_skip_list_is_written_does_not_matter(skip: tuple[tuple[int, int], ...]) -> None:
    reordered = tuple(reversed(skip)) + skip
    assert _consumed(DataOrder(50, 0, skip), 20, 7) == _consumed(DataOrder(50, 0, reordered), 20, 7)


def test_skipping_ahead_leaves_earlier_steps_alone() -> None:
    plain, skipping = DataOrder(1000, 5), DataOrder(1000, 5, ((640, 704),))
    for step in range(40):
        assert np.array_equal(plain.sample_ids(step, 16), skipping.sample_ids(step, 16))
    assert np.array_equal(plain.sample_ids(44, 16), skipping.sample_ids(40, 16))


def test_skipped_positions_stay_the_same_samples_at_a_far_step() -> None:
    plain, skipping = DataOrder(97, 5), DataOrder(97, 5, ((40, 44),))
    assert np.array_equal(skipping.positions(10**12, 4), plain.positions(10**12, 4) + 4)


def test_epochs_differ_from_each_other_and_seeds_too() -> None:
    order = DataOrder(1000, 1)
    assert not np.array_equal(order.sample_ids(0, 1000), order.sample_ids(1, 1000))
    assert not np.array_equal(order.sample_ids(0, 1000), DataOrder(1000, 2).sample_ids(0, 1000))


def test_neighbours_in_the_order_are_not_neighbours_in_the_data() -> None:
    ids = DataOrder(20_000, 9).sample_ids(0, 20_000).astype(np.float64)
    assert abs(float(np.corrcoef(ids[:-1], ids[1:])[0, 1])) < 0.03
    assert abs(float(np.corrcoef(ids, np.arange(20_000))[0, 1])) < 0.03


@given(batch=st.integers(1, 70), world=st.integers(1, 9), micro=st.integers(1, 9))
def test_the_ranks_together_hold_the_batch_and_take_equal_numbers_of_micro_steps(
    batch: int, world: int, micro: int
) -> None:
    ids = DataOrder(500, 11).sample_ids(3, batch)
    shares = [rank_share(ids, rank, world, micro) for rank in range(world)]
    assert {len(share) for share in shares} == {micro_steps(batch, world, micro)}
    assert {part.shape for share in shares for part in share} == {(micro,)}
    union = np.concatenate([part for share in shares for part in share])
    assert np.array_equal(union[union != PADDING], ids)


@given(batch=st.integers(1, 70), world=st.integers(1, 9))
def test_no_rank_carries_more_than_one_sample_above_another(batch: int, world: int) -> None:
    ids = np.arange(batch, dtype=np.int64)
    loads = [int((np.concatenate(rank_share(ids, rank, world, 4)) != PADDING).sum()) for rank in range(world)]
    assert max(loads) - min(loads) <= 1


def test_ranges_that_touch_or_overlap_are_joined_and_empty_ones_dropped() -> None:
    assert merge_ranges(((5, 9), (0, 2), (2, 4), (8, 12), (20, 20))) == ((0, 4), (5, 12))


@pytest.mark.parametrize(
    ("samples", "skip"), [(0, ()), (-1, ()), (5, ((3, 2),)), (5, ((-1, 2),))], ids=["none", "negative", "back", "below"]
)
def test_an_order_that_cannot_be_is_refused(samples: int, skip: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="not"):
        DataOrder(samples, 0, skip)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is not in a world of 2"):
        rank_share(np.arange(4, dtype=np.int64), 2, 2, 2)
