"""The picture of a back-test: each curve with its alarms marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.outcome import Judged, episodes
from stormsail.workers.detect.rules.row import Level

_LOSS, _NORM, _INCIDENT, _WATCH = "#1f6feb", "#8c959f", "#d1242f", "#bf8700"
ENDINGS = (".svg", ".png", ".pdf")


def check_ending(path: Path) -> None:
    """Refuse an ending that cannot be drawn. Raises `ConfigError`."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(
            f"cannot draw into {path.suffix or 'a file without an ending'}",
            where=str(path),
            todo=f"use one of {', '.join(ENDINGS)}",
        )


def draw(judged: Sequence[Judged], path: Path) -> None:
    """Draw one panel per curve: loss, gradient norm behind it, incidents in red, watches as ticks.

    Raises:
        ConfigError: The ending is not one that can be drawn, or the file cannot be written.
    """
    check_ending(path)
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "svg.hashsalt": "stormsail"}):
        figure, panels = plt.subplots(
            len(judged), 1, figsize=(10, 2.8 * len(judged)), layout="constrained", squeeze=False
        )
        try:
            for one, axes in zip(judged, panels[:, 0], strict=True):
                _panel(one, axes)
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise ConfigError(f"the picture cannot be written: {error.strerror}", where=str(path)) from error
        finally:
            plt.close(figure)


def _panel(one: Judged, axes: Any) -> None:
    steps = [point.step for point in one.curve.points]
    if one.curve.has_norm:
        behind = axes.twinx()
        norms = [point.grad_norm or math.nan for point in one.curve.points]
        behind.plot(steps, norms, color=_NORM, lw=0.5, alpha=0.5)
        if any(math.isfinite(norm) for norm in norms):
            behind.set_yscale("log")
        behind.set_ylabel("gradient norm", color=_NORM)
        axes.set_zorder(behind.get_zorder() + 1)
        axes.patch.set_visible(False)
    axes.plot(steps, [point.loss for point in one.curve.points], color=_LOSS, lw=0.9)
    for episode in episodes(one):
        axes.axvspan(episode.first.step, max(episode.until, episode.first.step + 1), color=_INCIDENT, alpha=0.15)
        axes.axvline(episode.first.step, color=_INCIDENT, lw=1.0)
    watches = [alarm.step for alarm in one.alarms if alarm.level is Level.WATCH]
    low, high = axes.get_ylim()
    axes.plot(watches, [low + 0.02 * (high - low)] * len(watches), "|", color=_WATCH, ms=8)
    axes.set_title(f"{one.curve.name}: {len(episodes(one))} incidents", loc="left", fontsize=9)
    axes.set_ylabel("loss (nats)")
    axes.set_xlabel("step")
