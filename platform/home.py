"""Where Stormsail keeps its things on this machine: one folder, `STORMSAIL_HOME` or `~/.stormsail`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """The folder and the names below it; nothing is created by asking.

    Attributes:
        path: The folder itself.
    """

    path: Path

    @classmethod
    def here(cls) -> Home:
        """The home of this user on this machine."""
        return cls(Path(os.environ.get("STORMSAIL_HOME") or Path.home() / ".stormsail").expanduser().absolute())

    @property
    def host(self) -> Path:
        """The local host process: pid file, token, store keys, log."""
        return self.path / "host"

    @property
    def store(self) -> Path:
        """The embedded store's data."""
        return self.path / "store"

    @property
    def data(self) -> Path:
        """Token shards, one folder per data set digest."""
        return self.path / "data"

    @property
    def extensions(self) -> Path:
        """Compiled DeepSpeed extensions, one folder per build environment."""
        return self.path / "extensions"

    @property
    def mlflow_db(self) -> Path:
        """MLflow's database where tracking is `sqlite`."""
        return self.path / "mlflow.db"

    def run(self, name: str) -> Path:
        """The local folder of a run: logs, Ray's files, the local journal."""
        return self.path / "runs" / name
