"""The registry: complete, and everything in it has its page in the runbook."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from stormsail.platform.step_values import STEP_VALUES
from stormsail.supervisor.alerting import policy
from stormsail.supervisor.monitors.item import Item, State
from stormsail.supervisor.monitors.table import ITEMS, PRESETS, items_of

ROOT = Path(__file__).resolve().parents[3]
EACH = pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)


def test_there_are_more_than_fifty_each_with_its_own_name() -> None:
    names = Counter(item.name for item in ITEMS)
    assert len(names) >= 50
    assert set(names.values()) == {1}


@EACH
def test_an_item_says_all_that_a_person_needs(item: Item) -> None:
    assert all((item.unit, item.meaning, item.action, item.limits.normal_text))
    assert re.fullmatch(r"(rows|events): .+", item.source)
    worse = item.limits.warn >= item.limits.danger if item.limits.below else item.limits.warn <= item.limits.danger
    assert worse
    assert item.limits.state(item.limits.danger) is State.DANGER


def anchors() -> set[str]:
    """As GitHub makes them: lower case, spaces to dashes, other signs gone."""
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_item_and_every_alert_has_its_place_in_the_runbook() -> None:
    told = {item.page for item in ITEMS}
    told |= set(re.findall(r'page="([a-z-]+)"', Path(policy.__file__).read_text(encoding="utf-8")))
    told |= {fault.page for fault in policy._FAULTS.values()} | {policy._ANY_FAULT.page}
    assert sorted(told - anchors()) == []


def test_every_kind_of_event_that_is_watched_is_noted_somewhere() -> None:
    """A mistyped kind would count to 0 for ever."""
    sources = [path for folder in ("workers", "supervisor", "platform") for path in (ROOT / folder).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sources if "monitors" not in path.parts]
    watched = {
        kind
        for item in ITEMS
        for kind in re.findall(r"[a-z]+\.[a-z_]+(?=[,;]|$)", item.source)
        if item.source.startswith("events")
    }
    quoted = {word for text in texts for word in re.findall(r'"([a-z]+\.[a-z_]+)"', text)}
    assert sorted(watched - quoted) == []


def test_every_named_value_that_is_watched_is_in_the_table_of_rows() -> None:
    known = {value.name for value in STEP_VALUES}
    watched = {name for item in ITEMS for name in re.findall(r"values ([a-z_.*]+)", item.source)}
    assert sorted(watched - known) == []


def test_the_articles_metric_table_is_a_preset_of_five_absolute_limits() -> None:
    found = {item.name: limits for item, limits in items_of("article")}
    assert {name: (limits.warn, limits.danger) for name, limits in found.items()} == {
        "loss.value": (5.0, 10.0),
        "gradient.norm": (2.0, 5.0),
        "optimizer.lr": (1e-3, 1e-2),
        "model.token_accuracy": (0.20, 0.15),
        "gradient.nonfinite": (100.0, 1000.0),
    }
    assert found["loss.value"].normal_text == "2 to 4"


def test_presets_name_only_items_that_exist() -> None:
    names = {item.name for item in ITEMS}
    assert all(limits.keys() <= names for limits in PRESETS.values())
    assert len(items_of("default")) == len(ITEMS)
