"""Telling the user's mistakes from ours: exceptions of user code become `UserCodeError`, first cause first."""

from __future__ import annotations

import itertools
import sys
import sysconfig
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import ParamSpec, TypeVar

import stormsail
from stormsail.platform.errors import StormsailError, UserCodeError

P = ParamSpec("P")
R = TypeVar("R")

_MACHINERY = ("torch", "deepspeed", "ray")  # what runs user code and is run by it
# Files of DeepSpeed that are around every forward pass, or compute, and do not themselves wait for other ranks.
_SILENT = ("deepspeed/runtime/engine.py", "deepspeed/utils/nvtx.py", "deepspeed/runtime/zero/linear.py")
# Our files that only pass calls on, to user code or to other ranks.
_CALLERS = ("factories.py", "usercode.py", "engine.py", "deepspeed_private.py")


def call_user(task: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call user code; what it raises becomes a `UserCodeError`, unless it is one of our own errors.

    Args:
        task: What the call is for, as the beginning of a sentence (`model.factory mymodel:build`).
        function: The user's function.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    try:
        return function(*args, **kwargs)
    except StormsailError:
        raise
    except (Exception, SystemExit) as error:
        raise user_error(error, task) from error


def user_error(error: BaseException, task: str) -> UserCodeError:
    """Describe an exception that came out of user code: where it began, what followed, the whole traceback."""
    root = first_cause(error)
    what = f"{task} raised {_headline(root)}"
    if root is not error:
        what += f", which led to {_headline(error)}"
    return UserCodeError(what, where=_location(root), details=_details(error))


def first_cause(error: BaseException) -> BaseException:
    """The exception at the start of the chain."""
    seen = {id(error)}
    while True:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None or id(before) in seen:
            return error
        seen.add(id(before))
        error = before


class Blame(StrEnum):
    """Whose code raised."""

    USER = "user"
    OURS = "ours"
    PEERS = "peers"


def blame(error: BaseException) -> Blame:
    """Whose exception came out of a forward pass, judged by the innermost call that belongs to anybody.

    A peer that dies while user code runs shows itself as an exception below that code: a parameter is gathered
    in a hook of the user's own layer. That is no mistake of the user's.
    """
    root = first_cause(error)
    may_be_peers = isinstance(root, RuntimeError | OSError)
    for frame in reversed(traceback.extract_tb(root.__traceback__)):
        if may_be_peers and _communicates(frame.filename):
            return Blame.PEERS
        if _is_ours(frame.filename) and Path(frame.filename).name not in _CALLERS:
            return Blame.OURS
        if not _is_machinery(frame.filename) and not _is_ours(frame.filename):
            return Blame.USER
    return Blame.USER


def _headline(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _location(error: BaseException) -> str:
    """`file:line` of the innermost frame that the user wrote, or of the innermost one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _is_machinery(frame.filename) and not _is_ours(frame.filename)]
    chosen = (theirs or list(frames))[-1:]
    return f"{chosen[0].filename}:{chosen[0].lineno}" if chosen else ""


def _details(error: BaseException) -> str:
    """The traceback as text, first cause first, from the first frame that the user wrote; without ours in between."""
    whole = traceback.TracebackException.from_exception(error)
    links: list[traceback.TracebackException | None] = [whole]
    while links:
        link = links.pop()
        if link is None:
            continue
        kept = [frame for frame in link.stack if not _is_ours(frame.filename) and not _is_frozen(frame.filename)]
        theirs = list(itertools.dropwhile(lambda frame: _is_machinery(frame.filename), kept))
        link.stack = traceback.StackSummary.from_list(theirs or kept or list(link.stack))
        links += [link.__cause__, link.__context__]
    return "".join(whole.format())


def _communicates(file: str) -> bool:
    path = Path(file).as_posix()
    if path.endswith(_SILENT):
        return False
    distributed = [f"{folder}/distributed/" for folder in _folders("torch")]
    return path.startswith(tuple(distributed + [f"{folder}/" for folder in _folders("deepspeed")]))


def _is_machinery(file: str) -> bool:
    """Whether the file belongs to Python itself or to the libraries that call user code."""
    if _is_frozen(file) or file.startswith(tuple(f"{folder}/" for name in _MACHINERY for folder in _folders(name))):
        return True
    installed = "site-packages" in file or "dist-packages" in file
    return file.startswith(f"{sysconfig.get_path('stdlib')}/") and not installed


def _is_ours(file: str) -> bool:
    return file.startswith(tuple(f"{folder}/" for folder in stormsail.__path__))


def _is_frozen(file: str) -> bool:
    return file.startswith("<frozen ")


def _folders(name: str) -> list[str]:
    """Where a package was imported from; nothing if it was not."""
    module = sys.modules.get(name)
    return [str(folder) for folder in getattr(module, "__path__", [])]
