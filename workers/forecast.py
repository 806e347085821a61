"""A small LSTM that learns the run's own loss and forecasts its next five steps, beside a robust forecast.

It runs on rank 0, in a thread of its own at the lowest priority, and only watches: what it finds becomes a line and a
value of the row, never a verdict. It touches no random state but its own, so the run's numbers are the same with and
without it. The training thread only puts losses into a queue; when that is full, the forecast misses some.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from stormsail.workers.detect.beside import Forecast as Limits
from stormsail.workers.detect.trend import AHEAD, Band, forecast

_WINDOW = 32  # losses that a forecast looks back on
_MEMORY = 512  # losses that are learnt from
_HIDDEN = 16
_BATCH = 8
_LEAST = 4 * _WINDOW  # losses before the LSTM speaks
_WAITING = 256
_LEAST_SIGMA = 1e-9  # nats; a loss that is 0 for long has a band of width 0
_SIGMA_FLOOR = 0.05  # in units of the window's scale

Say = Callable[..., object]


class LossForecaster:
    """Learns and forecasts until closed.

    Args:
        say: Takes a line (kind, fields); called from the thread.
        seed: Of its own initial weights and its own choice of what to learn from.
        limits: When a loss has left its forecast.
    """

    def __init__(self, say: Say, *, seed: int, limits: Limits) -> None:
        self._say = say
        self._limits = limits
        self._losses: queue.Queue[tuple[int, float] | None] = queue.Queue(_WAITING)
        self._values: dict[str, float] = {}
        self._closed = threading.Event()
        self._seed = seed
        self._thread = threading.Thread(target=self._run, name="stormsail-forecast", daemon=True)
        self._thread.start()

    def hear(self, step: int, loss: float) -> None:
        """A step's loss; never waits."""
        if math.isfinite(loss):
            with contextlib.suppress(queue.Full):  # it may miss losses, the run may not wait
                self._losses.put_nowait((step, loss))

    @property
    def values(self) -> dict[str, float]:
        """What was found last, by the names of row values."""
        return self._values

    def close(self, *, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        with contextlib.suppress(queue.Full):  # it is not asleep then
            self._losses.put_nowait(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            _be_modest()
            judge = Forecasts(self._seed, self._limits)
            while not self._closed.is_set():
                heard = self._losses.get()
                if heard is not None:
                    self._take(judge, *heard)
        except Exception as error:  # noqa: BLE001 - the thread's entry: a run must not end by its forecast
            traceback.print_exception(error)
            self._say("forecast.failed", error=f"{type(error).__name__}: {error}")

    def _take(self, judge: Forecasts, step: int, loss: float) -> None:
        self._values = judge.hear(step, loss)
        for name in judge.alarms:
            z = self._values[f"forecast.{name}_z"]
            self._say("forecast.watch", step=step, forecast=name, z=z, limit=self._limits.z)


class Forecasts:
    """Both forecasts and how the losses compare with them; one thread.

    Args:
        seed: Of the LSTM.
        limits: When a loss has left its forecast.

    Attributes:
        alarms: Forecasts ("lstm", "robust") that the last loss left for good, each said once.
    """

    def __init__(self, seed: int, limits: Limits) -> None:
        self._limits = limits
        self._net = _Net(seed)
        self._draw = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=3e-3)
        self._past: deque[float] = deque(maxlen=_MEMORY)
        self._last_step = -1
        self._bands: dict[str, list[Band]] = {}
        self._beyond: dict[str, deque[bool]] = {}
        self._calling: set[str] = set()
        self.alarms: list[str] = []

    def hear(self, step: int, loss: float) -> dict[str, float]:
        """Judge a loss by the forecasts made before it, then learn from it.

        Returns:
            How far it lay from each, in standard deviations, by the names of row values.
        """
        if step <= self._last_step:  # rolled back: what was learnt of the curve stays, what was forecast does not
            self._bands = {}
        self._last_step = step
        found = {
            name: (loss - bands[0][0]) / max(bands[0][1], _LEAST_SIGMA) for name, bands in self._bands.items() if bands
        }
        self._count(found)
        self._bands = {name: bands[1:] for name, bands in self._bands.items()}
        self._past.append(loss)
        if not any(self._bands.values()):
            self._look_ahead()
        return {f"forecast.{name}_z": z for name, z in found.items()}

    def _count(self, found: dict[str, float]) -> None:
        self.alarms = []
        for name, z in found.items():
            recent = self._beyond.setdefault(name, deque(maxlen=AHEAD))
            recent.append(z > self._limits.z)
            calls = sum(recent) >= self._limits.needed
            if calls and name not in self._calling:
                self.alarms.append(name)
            self._calling = self._calling | {name} if calls else self._calling - {name}

    def _look_ahead(self) -> None:
        past = list(self._past)
        self._bands = {"robust": list(forecast(past[-2 * _WINDOW :]))}
        if len(past) >= _LEAST:
            self._learn(past)
            self._bands["lstm"] = self._net.bands(past[-_WINDOW:])

    def _learn(self, past: Sequence[float]) -> None:
        """One step on some windows of the past, each scaled by itself."""
        every = torch.tensor(past).unfold(0, _WINDOW + AHEAD, 1)
        windows = every[torch.randint(len(every), (_BATCH,), generator=self._draw)]
        level, scale = _scale(windows[:, :_WINDOW])
        scaled = (windows - level) / scale
        means, sigmas = self._net(scaled[:, :_WINDOW])
        # Laplace's density rather than Gauss's: single outliers in the data pull less.
        loss = ((scaled[:, _WINDOW:] - means).abs() / sigmas + sigmas.log()).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class _Net(nn.Module):
    """An LSTM over a window [B, W], and the next values: what is expected [B, A], and how far off that may be [B, A]."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        # Without torch's own initial draw: its random state belongs to the run.
        self.cell = nn.LSTM(1, _HIDDEN, batch_first=True, device="meta")
        self.head = nn.Linear(_HIDDEN, 2 * AHEAD, device="meta")
        self.to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-(_HIDDEN**-0.5), _HIDDEN**-0.5, generator=generator)

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.cell(windows.unsqueeze(-1))
        out = self.head(hidden[:, -1])
        return out[:, :AHEAD], nn.functional.softplus(out[:, AHEAD:]) + _SIGMA_FLOOR

    @torch.no_grad()
    def bands(self, past: Sequence[float]) -> list[Band]:
        """The forecast in nats."""
        window = torch.tensor([past])
        level, scale = _scale(window)
        means, sigmas = self((window - level) / scale)
        # A Laplace density of width b has a standard deviation of b times the root of 2.
        return [
            (float(level + scale * mean), float(scale * sigma) * math.sqrt(2.0))
            for mean, sigma in zip(means[0], sigmas[0], strict=True)
        ]


def _scale(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Level and scale [B, 1] of windows [B, W]."""
    level = windows.median(dim=1, keepdim=True).values
    apart = (windows - level).abs().median(dim=1, keepdim=True).values
    return level, torch.maximum(1.4826 * apart, 0.004 * level.abs()).clamp_min(1e-6)


def _be_modest() -> None:
    """Give this thread the lowest priority, where the system has one for threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
