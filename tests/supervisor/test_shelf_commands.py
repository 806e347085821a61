"""The further commands about checkpoints, as somebody types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.conftest import Play
from tests.support.run_kit import Staff

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.cli import run as run_command
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.commands import register

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    root: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `stormsail checkpoints ...` against the store of this test."""
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command(["checkpoints", *words, "--storage", root.url], registers=[register])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def spoken(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def test_two_checkpoints_are_compared(command: Command, past: RunPlace) -> None:
    code, out, _ = command("diff", "run", "10", "newest", "--values")
    assert code == 0
    assert "  step: 10 / 30" in out
    found = spoken(command("diff", "run", "1/10", "good", "--json")[1])
    assert (found["first"], found["second"]) == ({"generation": 1, "step": 10}, {"generation": 1, "step": 20})
    assert command("diff", "run", "10", "10", "--with", "run")[1].startswith("the state is the same in every bit")


def test_a_superseded_one_is_reached_by_its_whole_name_only(command: Command, past: RunPlace) -> None:
    assert command("diff", "run", "1/23", "10")[0] == 0
    code, _, err = command("diff", "run", "23", "10")
    assert code == 3
    assert "no checkpoint 23" in err


def test_words_that_name_no_checkpoint_are_exit_code_2(command: Command, past: RunPlace) -> None:
    code, _, err = command("diff", "run", "latest", "10")
    assert code == 2
    assert "GENERATION/STEP" in err


def test_pruning_is_only_spoken_about(command: Command, past: RunPlace) -> None:
    code, out, _ = command("prune", "run", "--dry-run")
    assert code == 0
    assert out.splitlines()[-1].endswith("nothing was deleted")
    assert len(spoken(command("prune", "run", "--dry-run", "--json")[1])["checkpoints"]) == 4
    code, _, err = command("prune", "run")
    assert code == 2
    assert "--dry-run" in err
    assert len(scan_commits(past.store()).commits) == 4


def test_weights_are_exported_with_their_hashes(command: Command, past: RunPlace, tmp_path: Path) -> None:
    code, out, _ = command("export", "run", "20", "--out", str(tmp_path / "a"), "--dtype", "bf16")
    assert code == 0
    assert out.splitlines()[1].endswith("model.safetensors (0.0 MB)")
    found = spoken(command("export", "run", "--out", str(tmp_path / "b"), "--json")[1])
    assert found["checkpoint"] == {"generation": 2, "step": 30}
    assert [item["name"] for item in found["files"]] == ["model.safetensors"]


def test_another_format_is_exit_code_2(command: Command, past: RunPlace, tmp_path: Path) -> None:
    assert command("export", "run", "--out", str(tmp_path), "--format", "gguf")[0] == 2


def test_a_checkpoint_is_pinned_seen_to_be_pinned_and_given_back(command: Command, past: RunPlace) -> None:
    assert command("pin", "run", "10")[1] == "step 10 of generation 1 is pinned\n"
    assert "pinned" in command("ls", "run")[1].splitlines()[1]
    assert "pinned" in command("prune", "run", "--dry-run")[1].splitlines()[0]
    assert spoken(command("pin", "run", "10", "--json")[1])["changed"] is False
    assert command("unpin", "run", "10")[1] == "step 10 of generation 1 is no longer pinned\n"
    assert spoken(command("unpin", "run", "10", "--json")[1])["changed"] is False


def test_a_difference_is_compacted_into_a_keyframe(command: Command, played: Callable[[Play], RunPlace]) -> None:
    def short(staff: Staff) -> None:
        staff.checkpoint(20, base=staff.keyframe(10))

    played(short)
    assert "1/10" in command("ls", "run")[1].splitlines()[2]
    assert spoken(command("compact", "run", "20", "--json")[1])["bytes"] > 0
    assert "folded" in command("ls", "run")[1].splitlines()[2]
    assert command("compact", "run", "10")[1] == "step 10 of generation 1 is a keyframe already\n"
    assert command("verify", "run")[0] == 0
