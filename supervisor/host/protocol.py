"""How commands and the host process talk: one JSON line asks, JSON lines answer, over a unix socket.

While a request is worked on, the host says once a second what it is doing; so that a client knows it alive,
and can tell the user. The last line is the answer or an error.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ClusterError, StormsailError, TryLaterError

WAITING_EVERY_S = 1.0
# The host's answering threads share an interpreter with Ray's start, which holds them up for a while.
_SILENCE_S = 30.0
_LONGEST_LINE = 1 << 20


class NoHostError(Exception):
    """Nobody listens, or whoever did has just ended: there is no host process now."""


def encode(message: dict[str, Any]) -> bytes:
    """One message as one line."""
    return json.dumps(message).encode() + b"\n"


def waiting(what: str) -> bytes:
    """The host is at work on the request."""
    return encode({"state": "waiting", "what": what})


def answer(result: dict[str, Any]) -> bytes:
    """The request is done."""
    return encode({"state": "done", "result": result})


def refusal(error: StormsailError) -> bytes:
    """The request failed."""
    return encode({"state": "failed", "what": error.what, "where": error.where, "todo": error.todo})


def ask(
    control: Path, request: dict[str, Any], *, limit_s: float, log: Path, on_wait: Callable[[str], None]
) -> dict[str, Any]:
    """Put a request to the host process and wait for its answer.

    Args:
        control: The host's socket.
        request: Has `op`, and what that operation needs.
        limit_s: Longest wait for the answer.
        log: The host's log, named in errors.
        on_wait: Gets what the host is doing, about once a second.

    Raises:
        NoHostError: Nobody listens, or the host ended meanwhile.
        TryLaterError: No answer within the limit.
        ClusterError: The host could not do it.
    """
    deadline = time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(min(_SILENCE_S, limit_s))
        try:
            connection.connect(str(control))
            connection.sendall(encode(request))
            with connection.makefile("rb") as lines:
                while time.monotonic() < deadline:
                    reply = json.loads(lines.readline(_LONGEST_LINE) or _raise_no_host())
                    if reply["state"] == "done":
                        result: dict[str, Any] = reply["result"]
                        return result
                    if reply["state"] == "failed":
                        raise ClusterError(reply["what"], where=reply["where"], todo=reply["todo"])
                    on_wait(reply["what"])
        except (FileNotFoundError, ConnectionError) as error:
            raise NoHostError from error
        except TimeoutError as error:
            raise _no_answer(request, connection.gettimeout() or limit_s, log) from error
    raise _no_answer(request, limit_s, log)


def _raise_no_host() -> bytes:
    raise NoHostError


def _no_answer(request: dict[str, Any], waited_s: float, log: Path) -> TryLaterError:
    return TryLaterError(
        f"The local host process did not answer `{request['op']}` within {waited_s:.0f} s.",
        where=str(log),
        todo="See that log. `stormsail down` ends the host process; the next command starts a new one.",
    )
