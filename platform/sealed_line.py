"""A line of JSON with its own sums in front, in which one turned bit is not only seen but turned back; pure.

    {"sha256":"<64 hex digits>","crc32":"<8 hex digits>","body":<JSON without line breaks>}

For what has no second copy and is needed all the same. A bit that is turned changes the CRC by what only its place
explains, in lines of up to half a GiB; the SHA-256 then says whether that was all: only the line that was written has it.
"""

from __future__ import annotations

import hashlib
import zlib

_HEAD = b'{"sha256":"'
_BETWEEN = b'","crc32":"'
_MIDDLE = b'","body":'
_TAIL = b"}"
_HASH = slice(len(_HEAD), len(_HEAD) + 64)
_CRC = slice(_HASH.stop + len(_BETWEEN), _HASH.stop + len(_BETWEEN) + 8)
_BODY = slice(_CRC.stop + len(_MIDDLE), -len(_TAIL))
_POLYNOMIAL = 0xEDB88320  # of zlib's CRC-32, lowest bit first


def seal_line(body: bytes) -> bytes:
    """The line around a body, without its end."""
    return _framed(hashlib.sha256(body).hexdigest().encode(), b"%08x" % zlib.crc32(body), body)


def unseal_line(line: bytes) -> bytes:
    """The body of what `seal_line` made, also where one bit of the line is another.

    Raises:
        ValueError: More than that is not what was written.
    """
    body = line[_BODY]
    whole = seal_line(body)
    if whole == line or _bits_apart(whole, line) == 1:
        return body
    told, crc = line[_HASH], line[_CRC]
    if _framed(told, crc, body) != line:
        raise ValueError("it does not have the form of a sealed line")
    mended = _mended(body, crc)
    if seal_line(mended) != _framed(told, crc, mended):
        raise ValueError(f"its SHA-256 is {whole[_HASH].decode()}, expected {told.decode('ascii', 'replace')!r}")
    return mended


def _framed(sha256: bytes, crc32: bytes, body: bytes) -> bytes:
    return b"".join((_HEAD, sha256, _BETWEEN, crc32, _MIDDLE, body, _TAIL))


def _mended(body: bytes, told: bytes) -> bytes:
    """The body with the bit turned whose turning explains the CRC; as it is if no bit does.

    The CRC is linear: it differs from the one told by what the turned bit alone leaves in an empty register, after one
    step for each bit from there to the end. So all places are gone through from the end, with one step for each.
    """
    try:
        difference = zlib.crc32(body) ^ int(told, 16)
    except ValueError:
        return body
    register = 1
    for after in range(8 * len(body)):
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        if register == difference:
            mended = bytearray(body)
            mended[-1 - after // 8] ^= 0x80 >> after % 8
            return bytes(mended)
    return body


def _bits_apart(left: bytes, right: bytes) -> int:
    if len(left) != len(right):
        return 8 * max(len(left), len(right))
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).bit_count()
