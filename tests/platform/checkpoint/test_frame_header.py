"""A header says again what it was made from, and is refused where it does not fit its frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.frame_header import Codec, FrameHeader, pack_header, read_header
from stormsail.platform.checkpoint.planes import Method
from stormsail.platform.checkpoint.scales import Grid
from stormsail.platform.errors import CheckpointError

PARENT = bytes(range(16))


@st.composite
def headers(draw: st.DrawFn) -> tuple[FrameHeader, bytes]:
    """A header, and the frame that it begins, whose planes are zeros."""
    words, halves = draw(st.integers(1, 300)), draw(st.booleans())
    parent = draw(st.sampled_from([None, PARENT]))
    shift = draw(st.integers(0, 31)) if parent else 0
    columns = draw(st.integers(1, 50))
    grid = None if parent or draw(st.booleans()) else Grid(columns, draw(st.integers(0, columns - 1)))
    sizes = [words, words, *([2 * words] if halves else [words, words])]
    if grid is not None:
        sizes.append(grid.sides(words))
    table = [(Method.RAW, size) for size in sizes]
    codec = Codec.INT_SUB if parent else Codec.PLAIN
    packed = pack_header(codec, words, table, halves=halves, parent=parent, shift=shift, grid=grid)
    header = FrameHeader(codec, parent, shift, grid, words, halves, tuple(table), len(packed))
    return header, packed + bytes(sum(sizes))


@given(headers())
def test_a_header_says_what_it_was_made_from(made: tuple[FrameHeader, bytes]) -> None:
    header, frame = made
    assert read_header(frame) == header


@given(headers(), st.integers(1, 100))
def test_a_frame_that_is_shorter_or_longer_is_refused(made: tuple[FrameHeader, bytes], by: int) -> None:
    _, frame = made
    for wrong in (frame[:-by], frame + bytes(by)):
        with pytest.raises(CheckpointError):
            read_header(wrong)


@given(headers())
def test_each_plane_has_its_size(made: tuple[FrameHeader, bytes]) -> None:
    header, _ = made
    assert [header.plane_bytes(number) for number in range(len(header.planes))] == [size for _, size in header.planes]


def plain_frame() -> bytearray:
    return bytearray(pack_header(Codec.PLAIN, 3, [(Method.RAW, 3)] * 4, halves=False) + bytes(12))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 0, "not a frame"),
        (4, 2, "version 2"),
        (5, 1, "codec 1 is not known"),
        (6, 1, "contradicts itself"),
        (6, 2, "contradicts itself"),
        (6, 1 << 7, "contradicts itself"),
        (7, 5, "contradicts itself"),
        (12, 9, "plane 0 has the unknown method 9"),
        (13, 2, "plane 0 has 2 bytes for 3"),
    ],
)
def test_what_is_wrong_is_said(place: int, value: int, said: str) -> None:
    frame = plain_frame()
    frame[place] = value
    with pytest.raises(CheckpointError, match=said):
        read_header(bytes(frame))
