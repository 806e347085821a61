"""A line of JSON with its own hash in front, in which one turned bit is not only seen but turned back; pure.

    {"sha256":"<64 hex digits>","body":<JSON without line breaks>}

For what has no second copy and is needed all the same. The hash finds the bit: only the line that was written has it,
so of all the lines that differ in one bit at most one fits.
"""

from __future__ import annotations

import hashlib

_HEAD = b'{"sha256":"'
_MIDDLE = b'","body":'
_TAIL = b"}"
_HASH = slice(len(_HEAD), len(_HEAD) + 64)
_BODY = slice(_HASH.stop + len(_MIDDLE), -len(_TAIL))
_LONGEST_MENDED = 32 << 10  # bytes; the search grows with the square of the length: a few seconds for this many


def seal_line(body: bytes) -> bytes:
    """The line around a body, without its end."""
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, _TAIL))


def unseal_line(line: bytes) -> bytes:
    """The body of what `seal_line` made, also where one bit of the line is another.

    Raises:
        ValueError: More than that is not what was written.
    """
    body = line[_BODY]
    whole = seal_line(body)
    if whole == line or _bits_apart(whole, line) == 1:
        return body
    told = line[_HASH]
    framed = b"".join((line[: _HASH.start], told, line[_HASH.stop : _BODY.start], line[len(line) - len(_TAIL) :]))
    if framed != b"".join((_HEAD, told, _MIDDLE, _TAIL)):
        raise ValueError("it does not have the form of a sealed line")
    mended = _mended(body, told) if len(body) <= _LONGEST_MENDED else None
    if mended is None:
        raise ValueError(f"its SHA-256 is {whole[_HASH].decode()}, expected {told.decode('ascii', 'replace')!r}")
    return mended


def _mended(body: bytes, told: bytes) -> bytes | None:
    """The body with this hash that is one bit away, or None if there is none."""
    try:
        wanted = bytes.fromhex(told.decode("ascii"))
    except ValueError:
        return None
    candidate = bytearray(body)
    before = hashlib.sha256()  # of all that lies before the byte in question
    for place in range(len(body)):
        for bit in range(8):
            candidate[place] ^= 1 << bit
            rest = before.copy()
            rest.update(memoryview(candidate)[place:])
            if rest.digest() == wanted:
                return bytes(candidate)
            candidate[place] ^= 1 << bit
        before.update(body[place : place + 1])
    return None


def _bits_apart(left: bytes, right: bytes) -> int:
    if len(left) != len(right):
        return 8 * max(len(left), len(right))
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).bit_count()
