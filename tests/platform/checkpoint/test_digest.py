"""The digest adds up over any partition, and shows whatever goes wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from stormsail.platform.checkpoint.digest import BLOCK_ELEMENTS, Digest, total, word_sum
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.errors import CheckpointError, InternalError

WORDS = arrays.arrays(np.uint32, st.integers(1, 100))


def of(words: NDArray[np.uint32], start: int = 0, name: str = "w", component: str = "master") -> Digest:
    return Digest.of_words(name, component, start, words)


@given(WORDS, st.lists(st.integers(0, 100), max_size=5), st.integers(0, 2**40))
def test_pieces_of_any_partition_add_up(words: NDArray[np.uint32], cuts: list[int], start: int) -> None:
    edges = sorted({0, words.size, *(min(cut, words.size) for cut in cuts)})
    pieces = [of(words[left:right], start + left) for left, right in itertools.pairwise(edges)]
    assert total(pieces) == of(words, start)


def test_pieces_across_blocks_add_up() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 3 * BLOCK_ELEMENTS + 7, dtype=np.uint32)
    cut = BLOCK_ELEMENTS + 123
    assert of(words[:cut]) + of(words[cut:], cut) == of(words)


def test_the_definition_is_the_documented_one() -> None:
    """Worked out element by element from the tables, so that another implementation can follow it."""
    from stormsail.platform.checkpoint import digest as module

    words = np.array([5, 0, 0xFFFF_FFFF], np.uint32)
    start = BLOCK_ELEMENTS - 1
    seed = module._seeds("w", "master")[0]
    expected = 0
    for place, word in enumerate(words.tolist(), start=start):
        block, inside = divmod(place, BLOCK_ELEMENTS)
        weight = module._multiplier(module._TABLE_SEEDS[0], inside)
        expected += (word + module._OFFSETS[0]) * weight * module._multiplier(seed, block)
    assert of(words, start).first == expected % 2**64


def test_the_digest_is_the_same_for_ever() -> None:
    """Digests are on the store: whoever changes this breaks every run there is."""
    assert of(np.arange(1000, dtype=np.uint32), 70_000).hex == "8d09886e57f17be8ded35e885277e9d2"


@given(WORDS, st.data())
def test_any_changed_bit_shows_in_both_lanes(words: NDArray[np.uint32], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, words.size - 1))
    changed = words.copy()
    changed[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    before, after = of(words), of(changed)
    assert before.first != after.first
    assert before.second != after.second


def test_elements_count_where_they_stand() -> None:
    words = np.array([1, 2, 3, 4], np.uint32)
    others = [
        of(words[::-1].copy()),
        of(words, 1),
        of(words, BLOCK_ELEMENTS),
        of(words, name="v"),
        of(words, component="exp_avg"),
        of(words[:3]),
        of(np.array([1, 2, 3, 4, 0], np.uint32)),
    ]
    assert len({of(words), *others}) == 8


def test_swapped_blocks_of_rounded_values_show() -> None:
    """Sixteen zero bits at the end of every word leave 48 bits of each lane to tell the two apart."""
    random = np.random.default_rng(0)
    words = random.integers(0, 2**16, 2 * BLOCK_ELEMENTS, dtype=np.uint32) << np.uint32(16)
    swapped = np.concatenate([words[BLOCK_ELEMENTS:], words[:BLOCK_ELEMENTS]])
    assert of(words).first != of(swapped).first
    assert of(words).second != of(swapped).second


def test_two_flipped_signs_do_not_cancel() -> None:
    words = np.zeros(2000, np.uint32)
    digests = set()
    for place in range(1, 2000):
        changed = words.copy()
        changed[[0, place]] ^= np.uint32(0x8000_0000)
        digests.add(of(changed))
    assert of(words) not in digests
    assert len(digests) == 1999


def test_a_shard_has_the_digest_of_its_words() -> None:
    values = np.ones(4, np.float32)
    assert Digest.of(Shard(ShardSpec("w", "master", (9,), 3, 4), values)) == of(values.view(np.uint32), 3)


def test_nothing_is_zero_and_zeros_are_something() -> None:
    assert of(np.zeros(0, np.uint32)) == Digest() == total([])
    assert of(np.zeros(1, np.uint32)) != Digest()


def test_hex_comes_back() -> None:
    digest = of(np.arange(10, dtype=np.uint32))
    assert Digest.from_hex(digest.hex) == digest
    assert str(digest) == digest.hex
    for text in ("", "0" * 31, "0" * 31 + "G", "0" * 31 + "A"):
        with pytest.raises(CheckpointError):
            Digest.from_hex(text)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 1001])
def test_the_word_sum_takes_any_array(size: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    padded = array.tobytes() + bytes(-size % 8)
    words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
    assert word_sum(array) == sum(words) % 2**64


def test_the_word_sum_shows_a_disturbed_copy_and_refuses_gaps() -> None:
    live = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    copy = live.copy()
    assert word_sum(copy) == word_sum(live)
    copy[1000] = 0
    assert word_sum(copy) != word_sum(live)
    with pytest.raises(InternalError):
        word_sum(live[::2])
