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
_MANY_ROWS = 3000
_NAMED = 8  # more names would lie over each other


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
    thin = 0.4 if len(steps) > _MANY_ROWS else 0.9
    if one.curve.has_norm:
        _draw_norms(one, steps, axes, thin)
    axes.plot(steps, [point.loss for point in one.curve.points], color=_LOSS, lw=thin)
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.set_ylabel("loss (nats)")
    axes.set_xlabel("step")
    _draw_alarms(one, axes)


def _draw_norms(one: Judged, steps: Sequence[int], axes: Any, thin: float) -> None:
    """The gradient norm behind the loss, on a scale of its own."""
    behind = axes.twinx()
    norms = [point.grad_norm or math.nan for point in one.curve.points]
    behind.plot(steps, norms, color=_NORM, lw=thin, alpha=0.5)
    if any(math.isfinite(norm) for norm in norms):
        behind.set_yscale("log")
    behind.set_ylabel("gradient norm", color=_NORM)
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)


def _draw_alarms(one: Judged, axes: Any) -> None:
    happened = episodes(one)
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    for number, episode in enumerate(happened):
        step = episode.first.step
        axes.axvline(step, color=_INCIDENT, lw=1.0)
        if episode.until > step:
            axes.axvspan(step, episode.until, color=_INCIDENT, alpha=0.12, lw=0)
        if number < _NAMED:
            what = f" {episode.first.kind.value.replace('_', ' ')}, step {step} "
            side = "right" if step > left + 0.7 * (right - left) else "left"
            axes.text(step, high, what, color=_INCIDENT, fontsize=8, va="top", ha=side)
    watches = [alarm.step for alarm in one.alarms if alarm.level is Level.WATCH]
    axes.plot(watches, [low + 0.02 * (high - low)] * len(watches), "|", color=_WATCH, ms=8)
    incidents = f"{len(happened)} incident{'' if len(happened) == 1 else 's'}"
    axes.set_title(f"{one.curve.name}: {incidents} (red), {len(watches)} watches (ticks below)", loc="left", fontsize=9)
