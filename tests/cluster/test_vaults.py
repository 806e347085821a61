"""Vaults of a cluster of two nodes: copies on the buddy, a vault that is killed, and nothing left in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "modules" / "two_nodes.py"


def test_a_node_s_snapshots_are_on_its_buddy_and_outlive_the_vault_s_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env=os.environ | {"STORMSAIL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=700,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    opened = facts[0][1]
    assert [kind for kind, _ in opened] == ["vault.opened", "vault.opened"]
    assert all(text.startswith("copied to ") for _, text in opened)
    assert facts[1:] == [
        ["places", ["vault", "buddy"]],
        ["same", True],
        ["same", True],
        ["log", [True, True]],
        ["uncopied", [["vault.uncopied", True]]],
        ["restarted", [["vault.restarted", 1]]],
        ["still there", 1],
        ["slots come back", True],
        ["left", [False, False]],
    ]
