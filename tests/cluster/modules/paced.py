"""Token shards at a chosen pace, for tests that act while a run runs; the samples are those of `builtin:tokens`."""

from __future__ import annotations

import time
from pathlib import Path

from stormsail.platform.config.training import DataSection
from stormsail.platform.data.source import ShardSource
from stormsail.platform.data.tokens import Sample, TokenDataset


class Paced:
    """Each sample takes `pace_s`; while the file `brake` is there, those after the first `free` of a process `crawl_s`."""

    def __init__(self, inner: ShardSource, *, pace_s: float, brake: Path | None, crawl_s: float, free: int) -> None:
        self._inner = inner
        self._pace_s = pace_s
        self._brake = brake
        self._crawl_s = crawl_s
        self._free = free

    @property
    def digest(self) -> str:
        return self._inner.digest

    def samples(self) -> int:
        return self._inner.samples()

    def sample(self, index: int, /) -> Sample:
        self._free -= 1
        braked = self._free < 0 and self._brake is not None and self._brake.exists()
        time.sleep(self._crawl_s if braked else self._pace_s)
        return self._inner.sample(index)

    def held_out(self) -> ShardSource:
        """At no pace; trained on all the same, so that a run without evaluations reads the same samples."""
        return _Again(self._inner.dataset, self._inner.sequence_tokens)


class _Again(ShardSource):
    """The same samples under another name."""

    @property
    def digest(self) -> str:
        return f"{super().digest}/again"


def build(section: DataSection) -> Paced:
    brake = section.args.get("brake")
    return Paced(
        ShardSource(TokenDataset.open(Path(section.args["path"])), section.sequence_tokens),
        pace_s=section.args.get("pace_s", 0.0),
        brake=None if brake is None else Path(brake),
        crawl_s=section.args.get("crawl_s", 0.0),
        free=section.args.get("free", 0),
    )
