"""The starter runs as it is, and everything in its comments is true."""

from __future__ import annotations

import re
from collections.abc import Callable

from stormsail.platform.config.model import RunConfig
from stormsail.platform.config.starter import starter_yaml

TEXT = starter_yaml("run-1", file="my.yaml")


def test_it_loads(load: Callable[[str], RunConfig]) -> None:
    config = load(TEXT)
    assert (config.name, config.cluster.workers, config.storage.url) == ("run-1", 2, "embedded")


def test_with_every_comment_opened_it_is_the_same_run(load: Callable[[str], RunConfig]) -> None:
    opened = re.sub(r"^# (\s*[a-z0-9_]+:( .*)?)$", r"\1", TEXT, flags=re.MULTILINE)
    assert opened.count("\n# ") < TEXT.count("\n# ") - 30
    assert load(opened) == load(TEXT)


def test_every_key_is_shown(load: Callable[[str], RunConfig]) -> None:
    shown = set(re.findall(r"^#?\s*([a-z0-9_]+):", TEXT, flags=re.MULTILINE))
    config = load(TEXT).model_dump()
    sections = {key for value in config.values() if isinstance(value, dict) for key in value}
    assert (config.keys() | sections | config["model"]["args"].keys()) <= shown


def test_its_head_names_the_commands_for_this_file() -> None:
    assert "stormsail train my.yaml" in TEXT
