"""What is watched beside the rules of a curve, by which limits, and what each preset makes of them. Pure.

Forecast, continuity, layers, stalls and throughput judge something else than one row of a loss curve, so they are no
rules; their limits are chosen in the same way: those of the preset, and over them what the configuration sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from stormsail.platform.config.detect import DetectSection
from stormsail.platform.config.section import Section

L = TypeVar("L", "Forecast", "Continuity", "Layers", "Stall", "Throughput")


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a loss has left its forecast.

    Attributes:
        z: Beyond this a loss lies outside (sigma of the forecast's band).
        needed: Of the last five judged losses, so many outside are a watch.
    """

    z: float = 6.0
    needed: int = 3


@dataclass(frozen=True, slots=True)
class Continuity:
    """When a loss after a load is not the recorded one, where bits need not agree.

    Attributes:
        tolerance: Difference that is allowed (x recorded loss).
    """

    tolerance: float = 0.02


@dataclass(frozen=True, slots=True)
class Layers:
    """When a layer group is named as being in front.

    Attributes:
        ratio: Beyond this its norm is (x its level).
        least: Ordinary steps that are needed before (steps).
    """

    ratio: float = 2.0
    least: int = 20


@dataclass(frozen=True, slots=True)
class Stall:
    """When a single step of one rank is worth a line.

    Attributes:
        ratio: Its own work beyond this (x median of the other ranks),
        seconds: and so much longer than theirs (s).
    """

    ratio: float = 3.0
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """When a whole run has become slow.

    Attributes:
        collapsed: Below this it has (x usual tokens per second),
        recovered: and above this it has come back (x usual tokens per second).
        late: Last steps whose median is compared (steps).
        usual: Steps whose median is usual (steps).
        least: Steps that are needed before anything is usual (steps).
    """

    collapsed: float = 0.5
    recovered: float = 0.8
    late: int = 20
    usual: int = 200
    least: int = 50


@dataclass(frozen=True, slots=True)
class Beside:
    """All of them."""

    forecast: Forecast = Forecast()
    continuity: Continuity = Continuity()
    layers: Layers = Layers()
    stall: Stall = Stall()
    throughput: Throughput = Throughput()

    @classmethod
    def of(cls, detect: DetectSection) -> Beside:
        """The limits of a run."""
        chosen = BESIDE[detect.preset]
        return cls(
            _over(chosen.forecast, detect.forecast_limits),
            _over(chosen.continuity, detect.continuity),
            _over(chosen.layers, detect.layers),
            _over(chosen.stall, detect.stall),
            _over(chosen.throughput, detect.throughput),
        )


BESIDE: Mapping[str, Beside] = MappingProxyType(
    {
        "default": Beside(),
        "sensitive": Beside(
            Forecast(z=4.0),
            Continuity(0.01),
            Layers(ratio=1.5),
            Stall(2.0, 0.5),
            Throughput(collapsed=0.7, recovered=0.85),
        ),
        "quiet": Beside(
            Forecast(z=10.0, needed=4),
            Continuity(0.05),
            Layers(ratio=3.0),
            Stall(10.0, 5.0),
            Throughput(collapsed=0.3, recovered=0.6),
        ),
        "article": Beside(),  # the articles know nothing of these
    }
)
"""By preset."""


def _over(chosen: L, section: Section) -> L:
    """The preset's limits with those that the section sets."""
    told: dict[str, Any] = {name: value for name, value in section if value is not None}
    return replace(chosen, **told)
