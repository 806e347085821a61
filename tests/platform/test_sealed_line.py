"""A sealed line gives back its body whichever of its bits is turned, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.sealed_line import seal_line, unseal_line

BODY = b'{"kind":"lr.cut","factor":0.8,"writer":"w"}'


def flipped(line: bytes, bit: int) -> bytes:
    changed = bytearray(line)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_single_bit_is_turned_back() -> None:
    line = seal_line(BODY)
    assert unseal_line(line) == BODY
    assert {unseal_line(flipped(line, bit)) for bit in range(8 * len(line))} == {BODY}


@pytest.mark.parametrize("place", [0, 1, 77_777, 399_999, 799_999])
def test_the_bit_is_found_in_a_long_line_too(place: int) -> None:
    body = bytes(range(250)) * 400
    assert unseal_line(seal_line(body).replace(body, flipped(body, place))) == body


@given(st.binary(max_size=60), st.data())
def test_nothing_but_what_was_written_ever_comes_out(body: bytes, data: st.DataObject) -> None:
    line = seal_line(body)
    bits = data.draw(st.sets(st.integers(0, 8 * len(line) - 1), max_size=3))
    cut = data.draw(st.integers(0, len(line)))
    for damaged in (line[:cut], line + b"x"):
        if damaged != line:
            with pytest.raises(ValueError, match=r"SHA-256|form"):
                unseal_line(damaged)
    for bit in bits:
        line = flipped(line, bit)
    try:
        assert unseal_line(line) == body
    except ValueError:
        assert len(bits) > 1


@pytest.mark.parametrize("line", [b"", b"{}", b"\0" * 300, b'{"writer":"w"}', seal_line(bytes(1 << 16))[:-2] + b"xx"])
def test_what_is_no_sealed_line_is_told(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"form|SHA-256"):
        unseal_line(line)
