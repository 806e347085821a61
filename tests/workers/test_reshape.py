"""Real ZeRO-3 engines: what two ranks trained goes on on one, three and two again, with the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.verify import verify
from stormsail.platform.storage.local import LocalStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Two ranks train to 4 and save at 2 and 4; each later world goes on from a save of the one before, and the last two
# restore one and the same state on one rank and on two, so that their losses can be compared.
PLAN: list[dict[str, Any]] = [
    {"generation": 1, "ranks": 2, "restore": None, "steps": 6},
    {"generation": 2, "ranks": 1, "restore": [1, 4], "steps": 4},
    {"generation": 3, "ranks": 3, "restore": [2, 8], "steps": 2},
    {"generation": 4, "ranks": 2, "restore": [3, 10], "steps": 2},
    {"generation": 5, "ranks": 4, "restore": [1, 4], "steps": 2},
]


@pytest.fixture(scope="module")
def told(built_extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each rank of each generation told."""
    folder = tmp_path_factory.mktemp("worlds")
    (folder / "home").mkdir()
    (folder / "home" / "extensions").symlink_to(built_extensions.parent, target_is_directory=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.reshaping", json.dumps(PLAN), str(folder)],
        cwd=ROOT,
        env={**os.environ, "STORMSAIL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    store = LocalStore(folder / "run")
    assert all(verify(store, commit) == [] for commit in scan_commits(store).commits)
    return {
        world["generation"]: [
            json.loads((folder / f"{world['generation']}-{rank}.json").read_text()) for rank in range(world["ranks"])
        ]
        for world in PLAN
    }


def saved(told: dict[int, list[dict[str, Any]]], generation: int, step: int) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in told[generation][0]["saved"] if item["step"] == step)
    return found


@pytest.mark.timeout(700)
def test_every_world_holds_the_bits_that_the_one_before_saved(told: dict[int, list[dict[str, Any]]]) -> None:
    for world in PLAN[1:]:
        generation, (parent, step) = world["generation"], world["restore"]
        assert {rank["root"] for rank in told[generation]} == {saved(told, parent, step)["root"]}
        assert {rank["step"] for rank in told[generation]} == {step}


def test_the_optimizers_scalars_come_along(told: dict[int, list[dict[str, Any]]]) -> None:
    for generation, step in ((2, 4), (3, 8), (4, 10), (5, 4)):
        assert all(set(rank["scalars"]["step"]) == {float(step)} for rank in told[generation])


def test_training_goes_on_with_the_same_losses_within_rounding(told: dict[int, list[dict[str, Any]]]) -> None:
    straight = told[1][0]["losses"][4:6]
    assert told[2][0]["losses"][:2] == pytest.approx(straight, rel=0.02)
    assert told[5][0]["losses"] == pytest.approx(straight, rel=0.02)
    assert told[2][0]["losses"][0] < told[1][0]["losses"][0]


def test_the_first_save_of_a_world_is_a_keyframe_and_the_next_builds_on_it(
    told: dict[int, list[dict[str, Any]]],
) -> None:
    assert [item["base"] for item in told[1][0]["saved"][:2]] == [None, [1, 2]]
    assert [item["base"] for item in told[2][0]["saved"]] == [None, [2, 6]]
    assert saved(told, 3, 10)["base"] is None


def test_ranks_that_own_nothing_of_a_small_parameter_take_part(told: dict[int, list[dict[str, Any]]]) -> None:
    """Four ranks and a parameter of fewer elements: the last ranks hold only padding."""
    assert told[5][0]["empty"] <= told[5][3]["empty"]
