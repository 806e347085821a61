"""Frames give back every bit, are small where they can be, and believe nothing."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from stormsail.platform.checkpoint.chunks import CHUNK_ELEMENTS
from stormsail.platform.checkpoint.codec import Base, decode, encode
from stormsail.platform.checkpoint.frame_header import Codec, read_header
from stormsail.platform.checkpoint.planes import Method
from stormsail.platform.checkpoint.scales import Grid
from stormsail.platform.errors import CheckpointError, InternalError

WORDS = arrays.arrays(np.uint32, st.integers(1, 300))


def adam_like(count: int) -> NDArray[np.uint32]:
    return np.random.default_rng(0).normal(0, 0.02, count).astype(np.float32).view(np.uint32)


@given(WORDS)
def test_any_words_come_back(words: NDArray[np.uint32]) -> None:
    assert np.array_equal(decode(encode(words)), words)


@pytest.mark.parametrize(
    "words",
    [
        np.array([0x8000_0000, 0x7FC0_1234, 1, 0xFF80_0000], np.uint32),
        np.zeros(CHUNK_ELEMENTS, np.uint32),
        np.arange(100_000, dtype=np.uint32),
        np.random.default_rng(1).integers(0, 2**32, 70_000, dtype=np.uint32),
        adam_like(CHUNK_ELEMENTS),
    ],
    ids=["specials", "zeros", "ramp", "noise", "weights"],
)
def test_every_kind_of_plane_comes_back(words: NDArray[np.uint32]) -> None:
    assert np.array_equal(decode(encode(words)), words)


NEWER = np.array([0x3F800000, 0xBF810000, 0x00000000, 0x80000000, 0x7FC00000], np.uint32)
OLDER = Base(np.array([0x3F7F0000, 0xBF800000, 0x80000000, 0x00010000, 0x7FC10000], np.uint32), bytes(range(16)))
# Header, parent, table, planes: as they lie on stores for ever.
PLAIN_FRAME = "53534652 01040004 05000000" + "0005000000" * 4 + "7f7f0000ff 0003000180 0000000000 0000000000"
# Noise in the lower halves, as one plane: too few words for the writer to call it noise, but so it lies there.
HALVES_FRAME = (
    "53534652 01048003 05000000" + "0005000000" * 2 + "000a000000" + "7f7f0000ff 0003000180 0123 4567 89ab cdef fedc"
)
WITH_NOISE = NEWER | np.array([0x2301, 0x6745, 0xAB89, 0xEFCD, 0xDCFE], np.uint32)
DIFFERENCE_FRAME = (
    "53534652 01032104 05000000" + OLDER.digest.hex() + "0005000000" * 4 + "0000000000 8080808080 8080808080 817f817e7f"
)


@pytest.mark.parametrize(
    ("base", "frame"), [(None, PLAIN_FRAME), (OLDER, DIFFERENCE_FRAME)], ids=["plain", "difference"]
)
def test_a_frame_is_what_it_always_was(base: Base | None, frame: str) -> None:
    assert encode(NEWER, base=base).hex(" ") == bytes.fromhex(frame).hex(" ")
    assert np.array_equal(decode(bytes.fromhex(frame), base=base), NEWER)


@pytest.mark.parametrize("ahead", [0, 1])
def test_lower_halves_that_lie_together_are_read_from_any_address(ahead: int) -> None:
    stored = memoryview(bytes(ahead) + bytes.fromhex(HALVES_FRAME))[ahead:]
    assert np.array_equal(decode(stored), WITH_NOISE)


def test_lower_halves_that_are_noise_lie_together_and_others_do_not() -> None:
    noise = adam_like(CHUNK_ELEMENTS)
    assert read_header(encode(noise)).halves
    assert not read_header(encode(noise & np.uint32(0xFFFF_FF00))).halves


def test_a_plane_of_halves_is_never_compressed() -> None:
    frame = bytearray.fromhex(HALVES_FRAME)
    frame[12 + 2 * 5] = Method.ZSTD
    with pytest.raises(CheckpointError, match="plane 2"):
        decode(bytes(frame))


def test_words_are_put_where_they_are_wanted() -> None:
    words, room = adam_like(70_000), np.zeros(70_000, np.uint32)
    assert decode(encode(words), out=room) is room
    assert np.array_equal(room, words)
    with pytest.raises(CheckpointError, match="70000 elements, expected 69999"):
        decode(encode(words), out=room[1:])


def test_a_compressed_frame_with_a_grid_is_still_read() -> None:
    """zstd may compress otherwise one day; what it has written it reads."""
    plane = "28b52ffd6090004d000010000001008b2ac002"
    sides = bytes([*range(0x89, 0x9D), *(number % 256 for number in range(0xF6, 0x10A))]).hex()
    head = "53534652 01044005 90010000 14000000 00000000" + "0213000000" * 4 + "0028000000"
    rows, columns = np.divmod(np.arange(400, dtype=np.uint32), np.uint32(20))
    assert np.array_equal(
        decode(bytes.fromhex(head + plane * 4 + sides)), np.uint32(0x3F800000) + (rows + columns << 23)
    )


def test_float_state_keeps_its_noise_raw_and_codes_its_exponents() -> None:
    frame = encode(adam_like(CHUNK_ELEMENTS))
    methods = [method for method, _ in read_header(frame).planes]
    assert methods[0] is not Method.RAW
    assert methods[1:] == [Method.RAW, Method.RAW]
    assert len(frame) < 3.45 * CHUNK_ELEMENTS


def test_noise_costs_next_to_nothing_more_than_raw() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 70_000, dtype=np.uint32)
    assert len(encode(words)) - words.nbytes < 64


def test_zeros_nearly_vanish() -> None:
    assert len(encode(np.zeros(CHUNK_ELEMENTS, np.uint32))) < 1000


def test_the_same_words_give_the_same_frame() -> None:
    assert encode(adam_like(50_000)) == encode(adam_like(50_000))


@pytest.mark.parametrize("count", [0, CHUNK_ELEMENTS + 1])
def test_a_frame_has_its_limits(count: int) -> None:
    with pytest.raises(InternalError):
        encode(np.zeros(count, np.uint32))


def test_a_frame_with_a_parent_is_not_read_alone() -> None:
    frame = encode(adam_like(10), base=Base(adam_like(10), bytes(range(16))))
    assert read_header(frame).parent == bytes(range(16))
    with pytest.raises(CheckpointError, match="parent"):
        decode(frame)
    with pytest.raises(InternalError):
        encode(adam_like(10), base=Base(adam_like(10), b"short"))


def test_every_truncation_is_refused() -> None:
    frame = encode(adam_like(200))
    for length in range(len(frame)):
        with pytest.raises(CheckpointError):
            decode(frame[:length])
    with pytest.raises(CheckpointError):
        decode(frame + b"\0")


def test_a_changed_header_is_refused_or_changes_no_word() -> None:
    words = adam_like(200)
    frame = encode(words)
    for position in range(read_header(frame).payload):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            with pytest.raises(CheckpointError):
                decode(bytes(damaged))


def test_a_changed_plane_gives_words_or_an_error_and_never_anything_else() -> None:
    words = np.zeros(5000, np.uint32)
    frame = encode(words)
    for position in range(read_header(frame).payload, len(frame)):
        damaged = bytearray(frame)
        damaged[position] ^= 0x10
        try:
            assert decode(bytes(damaged)).size == words.size
        except CheckpointError:
            continue


def test_a_plane_that_claims_gigabytes_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    planes = [(Method.ZSTD, bomb), *[(Method.RAW, bytes(CHUNK_ELEMENTS))] * 3]
    head = struct.pack("<4sBBBBI", b"SSFR", 1, Codec.PLAIN, 0, 4, CHUNK_ELEMENTS)
    table = b"".join(struct.pack("<BI", method, len(body)) for method, body in planes)
    with pytest.raises(CheckpointError, match="another size"):
        decode(head + table + b"".join(body for _, body in planes))


def test_two_zstd_frames_in_one_plane_are_refused() -> None:
    body = zstandard.ZstdCompressor(level=1).compress(bytes(1000)) * 2
    head = struct.pack("<4sBBBBI", b"SSFR", 1, Codec.PLAIN, 0, 4, 1000)
    table = struct.pack("<BI", Method.ZSTD, len(body)) + struct.pack("<BI", Method.RAW, 1000) * 3
    with pytest.raises(CheckpointError):
        decode(head + table + body + bytes(3000))


def base_of(words: NDArray[np.uint32], digest: bytes = bytes(range(16))) -> Base:
    return Base(words, digest)


@given(st.data())
def test_any_difference_comes_back(data: st.DataObject) -> None:
    words = data.draw(WORDS)
    base = base_of(data.draw(arrays.arrays(np.uint32, words.size)))
    frame = encode(words, base=base)
    header = read_header(frame)
    assert (header.codec, header.parent) == (Codec.INT_SUB, base.digest)
    assert np.array_equal(decode(frame, base=base), words)


def test_a_difference_of_nearby_states_is_smaller_than_either() -> None:
    old = adam_like(100_000)
    new = (old.view(np.float32) * np.float32(1.0001)).view(np.uint32)
    assert len(encode(new, base=base_of(old))) < 0.8 * len(encode(new))


def test_what_has_not_changed_nearly_vanishes() -> None:
    words = adam_like(CHUNK_ELEMENTS)
    assert len(encode(words, base=base_of(words))) < 1000


def test_a_difference_is_not_read_with_another_parent() -> None:
    words = adam_like(100)
    frame = encode(words, base=base_of(words))
    with pytest.raises(CheckpointError, match="builds on the state 0001"):
        decode(frame, base=base_of(words, bytes(16)))
    with pytest.raises(CheckpointError, match="100 words build on 99"):
        decode(frame, base=base_of(words[:99]))
    with pytest.raises(CheckpointError, match="whole in itself"):
        decode(encode(words), base=base_of(words))
    with pytest.raises(InternalError):
        encode(words, base=base_of(words[:99]))


def test_a_changed_header_of_a_difference_is_refused_or_gives_other_words() -> None:
    """Only the count of the bits left out can change unnoticed here; the hash and the digest of the frame see it."""
    words = adam_like(200)
    base = base_of(words[::-1].copy())
    frame = encode(words, base=base)
    for position in range(read_header(frame).payload):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            if position == 6 and 1 <= bit <= 5:
                assert not np.array_equal(decode(bytes(damaged), base=base), words)
                continue
            with pytest.raises(CheckpointError):
                decode(bytes(damaged), base=base)


def test_differences_of_rounded_states_leave_out_their_zero_bits() -> None:
    old = adam_like(1000) & np.uint32(0xFFFF_0000)
    new = old + np.uint32(0x0003_0000)
    frame = encode(new, base=base_of(old))
    assert read_header(frame).shift == 16
    assert np.array_equal(decode(frame, base=base_of(old)), new)


def scaled(rows: int, columns: int) -> NDArray[np.uint32]:
    """Like second moments of a matrix: each row and each column has a scale of its own."""
    random = np.random.default_rng(3)
    scales = np.exp(random.normal(0, 3, (rows, 1)) + random.normal(0, 3, (1, columns)))
    return (scales * random.chisquare(20, (rows, columns))).astype(np.float32).reshape(-1).view(np.uint32)


@pytest.mark.parametrize(("first", "count"), [(0, 20_000), (37, 19_000), (199, 19_801), (100, 1700)])
def test_what_rows_and_columns_have_in_common_is_stored_once(first: int, count: int) -> None:
    words = scaled(100, 200)[first : first + count]
    frame = encode(words, grid=Grid(200, first))
    assert read_header(frame).grid == Grid(200, first)
    assert np.array_equal(decode(frame), words)
    assert len(frame) < 0.97 * len(encode(words))


@given(WORDS, st.data())
def test_any_words_come_back_from_any_grid(words: NDArray[np.uint32], data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 40))
    grid = Grid(columns, data.draw(st.integers(0, columns - 1)))
    assert np.array_equal(decode(encode(words, grid=grid)), words)


def test_a_grid_that_cannot_be_is_refused() -> None:
    with pytest.raises(InternalError):
        encode(adam_like(10), grid=Grid(4, 4))


def test_a_changed_header_of_a_frame_with_a_grid_is_refused_or_gives_other_words() -> None:
    """Rows of another length, or begun elsewhere, are seen by the hash and the digest of the frame."""
    words = scaled(40, 60)
    frame = encode(words, grid=Grid(60))
    for position in range(read_header(frame).payload):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            try:
                found = decode(bytes(damaged))
            except CheckpointError:
                continue
            assert not np.array_equal(found, words)
