"""Ray, torch and DeepSpeed keep quiet on the user's screen; what they have to say goes to files.

Only noise is dropped for good: deprecation notes that a library prints on every step about calls of
another library, which nobody here can change. Everything else is moved, not removed.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from pathlib import Path

_COLLECTIVES_DEPRECATED = r"`torch\.distributed\.\w+` (is|will be) deprecated"
# PYTHONWARNINGS knows no patterns: a message there is a literal beginning.
_PYTHON_WARNINGS = "ignore:`torch.distributed.:FutureWarning"


def quiet_environment() -> dict[str, str]:
    """Variables for a process that is yet to start (a `runtime_env`, a subprocess); warning filters already set stay."""
    present = os.environ.get("PYTHONWARNINGS", "")
    filters = present if _PYTHON_WARNINGS in present else ",".join(part for part in (present, _PYTHON_WARNINGS) if part)
    return {
        # Where a group breaks, c10d's C++ warnings alone cost seconds.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": filters,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def quiet_process(*, full_logs: bool = False) -> None:
    """Apply the same to this process. Call it before torch is imported; calling it again, later, does no harm.

    Ray sets its log level when it is imported: a driver passes `logging_level` to `ray.init` besides.

    Args:
        full_logs: Warnings of Ray and DeepSpeed are let through, because this process's output goes to a file.
    """
    os.environ.update(quiet_environment())
    warnings.filterwarnings("ignore", message=_COLLECTIVES_DEPRECATED, category=FutureWarning)
    logger = logging.getLogger("DeepSpeed")
    logger.removeFilter(_ERRORS_ONLY)
    if full_logs:
        return
    # A level would not last: DeepSpeed sets its own when it is imported.
    logger.addFilter(_ERRORS_ONLY)
    if "ray" in sys.modules:
        logging.getLogger("ray").setLevel(logging.ERROR)


def redirect_output(path: Path) -> None:
    """Send this process's stdout and stderr, those of C++ code and of children too, to the end of a file.

    The file is made with mode 0600, and its folder if missing. Python's own streams write line by line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(target, 1)
        os.dup2(target, 2)
    finally:
        os.close(target)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def mute_error_feed() -> None:
    """Keep Ray's feed of lost processes off this driver's screen: the supervisor tells of each, in words of its own.

    Ray prints that feed whatever `log_to_driver` says. Its full text stays in Ray's session folder.
    """
    from ray._private import worker

    worker.print_to_stdstream = lambda *_args, **_kwargs: None


class _ErrorsOnly(logging.Filter):
    """Lets records of level ERROR and above pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR


_ERRORS_ONLY = _ErrorsOnly()
