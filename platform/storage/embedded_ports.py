"""The ports of the embedded store: the same from start to start if they are still free."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from stormsail.platform.errors import StorageUnavailableError

COUNT = 5  # S3, master, volume, filer, admin
GRPC_OFFSET = 10_000  # the server takes each port a second time, this much higher

_FIRST, _LAST = 20_000, 22_700  # above the ports of Ray's workers, and the twins below those of clients
_DRAWS = 500
_SOCKETS = Path("/tmp")  # noqa: S108 (where the server puts its sockets, not asking TMPDIR)


def choose_ports(note: Path, *, fresh: bool) -> tuple[int, ...]:
    """Five free ports whose higher twins are free too; noted in a file for the next start.

    Args:
        note: The file.
        fresh: Do not take the noted ones again: one of them was no good.
    """
    noted = () if fresh else _read(note)
    ports = noted if len(noted) == COUNT and all(map(_free, noted)) else _draw()
    note.write_text(json.dumps(ports))
    return ports


def socket_files(ports: Iterable[int]) -> list[Path]:
    """The sockets that a server on these ports leaves in the temporary folder."""
    numbers = {number for port in ports for number in (port, port + GRPC_OFFSET)}
    return [path for number in numbers for path in _SOCKETS.glob(f"seaweedfs-*-{number}.sock")]


def _read(note: Path) -> tuple[int, ...]:
    try:
        held = json.loads(note.read_text())
    except (FileNotFoundError, ValueError):
        return ()
    return tuple(port for port in held if isinstance(port, int)) if isinstance(held, list) else ()


def _draw() -> tuple[int, ...]:
    draws = random.Random()  # noqa: S311 (spreads servers over ports; nothing secret)
    found: list[int] = []
    for _ in range(_DRAWS):
        port = draws.randint(_FIRST, _LAST)
        if port not in found and _free(port):
            found.append(port)
        if len(found) == COUNT:
            return tuple(found)
    raise StorageUnavailableError("No free ports for the embedded store", where=f"127.0.0.1:{_FIRST}-{_LAST}")


def _free(port: int) -> bool:
    return all(_can_bind(number) for number in (port, port + GRPC_OFFSET))


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
