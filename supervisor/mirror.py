"""Starting and ending the process that mirrors a run to MLflow; whatever becomes of it, the run does not notice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.storage.store import StoreAddress
from stormsail.platform.tracking import MirrorSettings, flat_params

# It ends itself within half a minute of MLflow's not answering. This is for one that hangs, or that has only just been
# started and, with its low priority on a busy machine, is still importing MLflow and making its database.
_END_LIMIT_S = 120.0


def settings_for(config: RunConfig, store: StoreAddress, home: Home) -> MirrorSettings | None:
    """What the mirror of this run is started with, or None if tracking is off."""
    uri = config.tracking.uri
    if uri is None:
        return None
    local = uri == "sqlite"
    return MirrorSettings(
        store=store,
        uri=f"sqlite:///{home.mlflow_db}" if local else uri,
        experiment=config.tracking.experiment,
        artifacts=str(home.path / "mlflow-artifacts") if local else None,
        run_name=config.name,
        params=flat_params(config.model_dump(mode="json")),
        every_s=config.tracking.every_s,
    )


class MirrorProcess:
    """The running mirror.

    Args:
        settings: What to mirror where.
        log: File for its own complaints.
        tell: Records `tracking.away` and `tracking.back`.
    """

    def __init__(self, settings: MirrorSettings, *, log: Path, tell: Callable[..., object]) -> None:
        self._tell = tell
        with log.open("ab") as complaints:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stormsail.platform.tracking"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._write(settings.to_line() + "\n")
        self._listener = threading.Thread(target=self._listen, name="stormsail-mirror", daemon=True)
        self._listener.start()

    def close(self) -> None:
        """Let it send what is left, for a while, and end it."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # as in `_write`
                self._process.stdin.close()
        try:
            code = self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._listener.join(5.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if code != 0:
            self._tell("tracking.incomplete", exit_code=code)

    def _write(self, text: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died already; `close` tells with which exit code
                self._process.stdin.write(text)
                self._process.stdin.flush()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            said = json.loads(line)
            self._tell(said.pop("kind"), **said)
