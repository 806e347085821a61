"""What the documents promise is there: commands, links, configuration, exit codes; and the scripts are sound."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import StormsailError
from stormsail.supervisor.phases import diagram

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/detectors.md",
    "docs/diagnosis.md",
    "docs/runbook.md",
    "docs/alerts.md",
    "docs/evaluation.md",
    "docs/sweeps.md",
]


def targets(root: Path) -> set[str]:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, flags=re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_a_document_names_exists(root: Path, document: str) -> None:
    named = set(re.findall(r"`make ([a-z][a-z0-9-]*)", (root / document).read_text(encoding="utf-8")))
    assert named <= targets(root)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_local_link_of_a_document_leads_somewhere(root: Path, document: str) -> None:
    page = root / document
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_source_file_that_the_architecture_page_names_exists(root: Path) -> None:
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:platform|workers|supervisor|tuning|tests|src|docs|k8s)/[^`\s]*)`", page))
    assert named
    assert not sorted(name for name in named if not (root / name).exists())


def test_the_diagram_of_the_phases_is_the_one_that_the_table_gives(root: Path) -> None:
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- phases:begin -->\n```mermaid\n(.*?)\n```", page, re.DOTALL)
    assert shown == [diagram()]


@pytest.mark.parametrize("script", [".ci/run", ".ci/setup"])
def test_scripts_are_executable_and_parse(root: Path, script: str) -> None:
    assert os.access(root / script, os.X_OK)
    subprocess.run(["bash", "-n", script], cwd=root, timeout=30, check=True)


def test_make_without_a_target_lists_them(root: Path) -> None:
    done = subprocess.run(["make"], cwd=root, capture_output=True, text=True, timeout=30, check=True)
    assert {"setup", "demo", "test", "test-fast", "lint"} <= set(
        re.findall(r"^  make ([a-z-]+)", done.stdout, re.MULTILINE)
    )


def test_the_run_shown_in_the_readme_is_a_valid_one(root: Path) -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (root / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    for block in blocks:
        RunConfig.model_validate(YAML(typ="safe").load(block))


def test_the_readme_lists_every_exit_code(root: Path) -> None:
    rows = re.findall(r"^\| (\d+) \|", (root / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(row) for row in rows} == {0, 130} | exit_codes(StormsailError)


def exit_codes(error: type[StormsailError]) -> set[int]:
    return {error.exit_code}.union(*(exit_codes(child) for child in error.__subclasses__()))
