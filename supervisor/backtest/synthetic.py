"""Made-up training curves with a seed: healthy ones with everything that must stay silent, and known trouble.

They are made to be unlike each other: level, noise, its correlation, period of the data, outliers and blips all come
from the seed. What they cannot do is surprise: a rule that holds here still has to hold on real runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from stormsail.supervisor.backtest.curve import Curve, Point
from stormsail.supervisor.backtest.labels import Label

_FIRST_LOSS = 10.9  # nats; ln of a usual vocabulary


@dataclass(frozen=True, slots=True)
class Nature:
    """What kind of run it is.

    Attributes:
        floor: Loss that it would reach in the end, in nats.
        noise: Standard deviation of the loss from step to step, in nats.
        correlation: Of the noise of neighbouring steps.
        period: Of the data's order, in steps; 0: well shuffled.
        swing: What that order does to the loss, in nats.
        outliers: Share of steps whose batch is an outlier.
        outlier: Its size, in nats.
        blips: Share of steps at which only the norm jumps.
        norm: Gradient norm late in the run.
        restart_every: Steps between jumps of the learning rate; 0: none.
        quantum: The loss is logged in multiples of this, in nats; 0: exactly.
    """

    floor: float = 2.8
    noise: float = 0.04
    correlation: float = 0.0
    period: int = 0
    swing: float = 0.0
    outliers: float = 5e-4
    outlier: float = 0.3
    blips: float = 2e-4
    norm: float = 0.3
    restart_every: int = 0
    quantum: float = 0.0


def nature_of(seed: int) -> Nature:
    """A nature drawn from a seed; every third has a period, every fourth a learning rate that jumps."""
    draw = Random(f"nature {seed}")  # noqa: S311 - a made-up curve, no secret
    return Nature(
        floor=draw.uniform(1.8, 4.5),
        noise=math.exp(draw.uniform(math.log(0.008), math.log(0.07))),
        correlation=draw.choice((0.0, 0.0, 0.3)),
        period=draw.randint(20, 90) if seed % 3 == 0 else 0,
        swing=draw.uniform(0.03, 0.1),
        outliers=draw.uniform(0.0, 1e-3),
        outlier=draw.uniform(0.15, 0.45),
        blips=draw.uniform(0.0, 4e-4),
        norm=math.exp(draw.uniform(math.log(0.05), math.log(2.0))),
        restart_every=draw.choice((700, 1500)) if seed % 4 == 1 else 0,
        quantum=0.015625 if seed % 7 == 3 else 0.0,  # noqa: PLR2004 - one in seven
    )


def healthy(seed: int, rows: int, *, nature: Nature | None = None, stride: int = 1, norms: bool = True) -> Curve:
    """A run without trouble, logged each `stride` steps."""
    points = _points(seed, rows, nature or nature_of(seed), stride, norms=norms)
    return Curve(f"healthy-{seed}", "made up", tuple(points))


def _points(seed: int, rows: int, nature: Nature, stride: int, *, norms: bool) -> list[Point]:
    noise = Random(f"rows {seed}")  # noqa: S311 - a made-up curve, no secret
    points = []
    drift = 0.0
    for step in range(0, rows * stride, stride):
        drift = nature.correlation * drift + math.sqrt(1.0 - nature.correlation**2) * noise.gauss(0.0, nature.noise)
        loss = _trend(nature, step) + _swing(nature, step) + drift
        log_norm = math.log(nature.norm) + 3.0 * math.exp(-step / 120.0) + noise.gauss(0.0, 0.09)
        if noise.random() < nature.outliers:
            loss += nature.outlier * noise.uniform(0.6, 1.4)
            log_norm += noise.uniform(0.0, 0.7)
        if noise.random() < nature.blips:
            log_norm += noise.uniform(1.0, 2.0)
        if nature.quantum:
            loss = round(loss / nature.quantum) * nature.quantum
        points.append(Point(step, loss, math.exp(log_norm) if norms else None))
    return points


def _trend(nature: Nature, step: int) -> float:
    loss = nature.floor + (_FIRST_LOSS - nature.floor) * math.pow(1.0 + step / 40.0, -0.6)
    if nature.restart_every:  # a rate that jumps lifts the loss a little, over some tens of steps, for a while
        since = step % nature.restart_every
        if step >= nature.restart_every:
            loss += 0.12 * (1.0 - math.exp(-since / 30.0)) * math.exp(-since / 400.0)
    return loss


def _swing(nature: Nature, step: int) -> float:
    return nature.swing * math.sin(2.0 * math.pi * step / nature.period) if nature.period else 0.0


def calm_before(points: Sequence[Point], rows: int) -> tuple[Point, ...]:
    """Made-up calm rows at the level of the first, to judge a fragment that has no past.

    Loss and norm scatter as those of healthy runs do: by 1 % of the level, and by 9 % of the norm. Always the same
    for the same fragment. Empty if no row has a finite loss.
    """
    first = next((point for point in points if math.isfinite(point.loss)), None)
    if first is None:
        return ()
    norm = next((point.grad_norm for point in points if point.grad_norm and math.isfinite(point.grad_norm)), None)
    stride = Curve("", "", tuple(points)).stride
    noise = Random(rows)  # noqa: S311 - a made-up curve, no secret
    return tuple(
        Point(
            points[0].step + (index - rows) * stride,
            first.loss * (1.0 + noise.gauss(0.0, 0.01)),
            None if norm is None else norm * math.exp(noise.gauss(0.0, 0.09)),
        )
        for index in range(rows)
    )


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is done to a curve.

    Attributes:
        kind: One of `FORMS`.
        step: Where it begins.
        size: How far the loss rises, in nats.
        length: Its time scale, in steps.
    """

    kind: str
    step: int
    size: float
    length: float


def _spike(trouble: Trouble, since: int) -> tuple[float, float]:
    up = min((since + 1) / 5.0, 1.0)
    fall = math.exp(-max(since - 5, 0) / trouble.length)
    return trouble.size * up * fall, math.log(30.0) * fall


def _lasting(trouble: Trouble, since: int) -> tuple[float, float]:
    return trouble.size * (1.0 - math.exp(-(since + 1) / 4.0)), math.log(2.0)


def _divergence(trouble: Trouble, since: int) -> tuple[float, float]:
    share = since / trouble.length
    return trouble.size * min(share, 3.0) ** 1.5, 0.5 * min(share, 2.0)


def _swinging(trouble: Trouble, since: int) -> tuple[float, float]:
    grown = min(since / trouble.length, 1.5)
    return trouble.size * grown * math.sin(2.0 * math.pi * since / 37.0), 0.3 * grown


def _resume(trouble: Trouble, since: int) -> tuple[float, float]:
    fall = math.exp(-since / trouble.length)
    return trouble.size * fall, math.log(20.0) * fall


FORMS: Mapping[str, Callable[[Trouble, int], tuple[float, float]]] = MappingProxyType(
    {
        "spike": _spike,
        "level_shift": _lasting,
        "slow_divergence": _divergence,
        "oscillation": _swinging,
        "resume_fault": _resume,
    }
)
"""Rise of the loss, in nats, and of the log norm, so many steps after the beginning."""

_SEEN_RISE = 0.25  # nats; a slow rise has begun when it is this large
_OVER = 0.05  # nats; below this a trouble is over
_ACTIONS: Mapping[str, str] = MappingProxyType({"resume_fault": "fix_resume", "oscillation": "watch"})


def troubled(
    seed: int, rows: int, trouble: Trouble, *, nature: Nature | None = None, stride: int = 1, norms: bool = True
) -> tuple[Curve, Label]:
    """The healthy run of this seed with the trouble in it, and its label.

    The onset of a slow rise is where the loss without its noise lies a quarter of a nat above its lowest: before
    that there is nothing to act on.
    """
    nature = nature or nature_of(seed)
    points = []
    onset, end, lowest = trouble.step, trouble.step, math.inf
    begun = trouble.kind != "slow_divergence"
    for point in _points(seed, rows, nature, stride, norms=norms):
        since = point.step - trouble.step
        rise, log_norm = FORMS[trouble.kind](trouble, since) if since >= 0 else (0.0, 0.0)
        norm = None if point.grad_norm is None else point.grad_norm * math.exp(log_norm)
        points.append(Point(point.step, point.loss + rise, norm))
        calm = _trend(nature, point.step) + rise
        lowest = min(lowest, calm)
        if not begun and since >= 0 and calm - lowest >= _SEEN_RISE:
            onset, begun = point.step, True
        if abs(rise) > _OVER:
            end = point.step
    name = f"{trouble.kind}-{seed}"
    label = Label(name, onset, max(onset, end), trouble.kind, _ACTIONS.get(trouble.kind, "rollback"))
    return Curve(name, "made up", tuple(points)), label
