"""The registry: every monitored item, and presets with other limits; pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.topics.data import DATA
from stormsail.supervisor.monitors.topics.gradient import GRADIENT
from stormsail.supervisor.monitors.topics.loss import LOSS
from stormsail.supervisor.monitors.topics.model import MODEL
from stormsail.supervisor.monitors.topics.optimizer import OPTIMIZER
from stormsail.supervisor.monitors.topics.recovery import RECOVERY
from stormsail.supervisor.monitors.topics.saved import SAVED
from stormsail.supervisor.monitors.topics.services import SERVICES
from stormsail.supervisor.monitors.topics.speed import SPEED

ITEMS: tuple[Item, ...] = (
    *LOSS,
    *GRADIENT,
    *OPTIMIZER,
    *MODEL,
    *DATA,
    *SPEED,
    *SAVED,
    *RECOVERY,
    *SERVICES,
)
"""All monitored items, in the order in which a person reads them."""

# The metric table of the practitioners' articles, as it stands there: absolute values, whatever the model. They are
# kept for comparison. A loss of 2 to 4 and a norm of 0.1 to 1 are true of one tokenizer and one model size only.
_ARTICLE: Mapping[str, Limits] = MappingProxyType(
    {
        "loss.value": Limits(5.0, 10.0, normal="2 to 4"),
        "gradient.norm": Limits(2.0, 5.0, normal="0.1 to 1"),
        "optimizer.lr": Limits(1e-3, 1e-2, normal="1e-5 to 1e-3"),
        "model.token_accuracy": Limits(0.20, 0.15, below=True, normal="30 to 50 %"),
        "gradient.nonfinite": Limits(100.0, 1000.0, normal="0"),
    }
)

PRESETS: Mapping[str, Mapping[str, Limits]] = MappingProxyType({"default": MappingProxyType({}), "article": _ARTICLE})
"""Limits by item; `default` has the items' own, any other preset shows only the items that it names."""


def items_of(preset: str) -> tuple[tuple[Item, Limits], ...]:
    """The items of a preset with the limits that hold there. Raises `KeyError`."""
    limits = PRESETS[preset]
    wanted = ITEMS if not limits else tuple(item for item in ITEMS if item.name in limits)
    return tuple((item, limits.get(item.name, item.limits)) for item in wanted)
