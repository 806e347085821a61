"""Every damaged object of a run is named, with what is wrong and which checkpoints need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.differences import tiny_keyframe
from tests.support.run_kit import Staff, checkpoint_meta

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.keys import FORMAT_KEY, commit_key, generation_key, manifest_key, part_key
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import write_part
from stormsail.platform.cli import run as run_command
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import ObjectStore, StoreAddress
from stormsail.supervisor.commands import register
from stormsail.supervisor.shelf_verify import render_verified, verify_shelf

Played = Callable[[Callable[[Staff], None]], RunPlace]
Verify = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verify(
    root: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Verify:
    """Runs `stormsail checkpoints verify run` against the store of this test."""
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))

    def call(*words: str) -> tuple[int, str, str]:
        code = run_command(["checkpoints", "verify", "run", *words, "--storage", root.url], registers=[register])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def chained(staff: Staff) -> None:
    """A keyframe at 10 and two differences to it, at 20 and 30."""
    base = None
    for step in (10, 20, 30):
        values = (np.arange(20_000) * (1 + step * 1e-6)).astype(np.float32)
        shards = [
            Shard(ShardSpec("w", component, (20_000,), 0, 20_000), values.copy())
            for component in ("exp_avg", "exp_avg_sq", "master")
        ]
        part = write_part(
            staff.store,
            generation=1,
            step=step,
            rank=0,
            world_size=1,
            shards=shards,
            cancelled=lambda: False,
            base=base,
        )
        staff.committer.add(part, checkpoint_meta(step), 0.0)
        assert staff.committer.drain(20.0)
        base = base or tiny_keyframe(part, shards)


def flip(store: ObjectStore, key: str, place: int = -1) -> None:
    body = bytearray(store.get(key))
    body[place] ^= 4
    store.put(key, bytes(body))


def test_a_whole_run_is_exit_code_0(verify: Verify, past: RunPlace) -> None:
    assert verify()[:2] == (0, "4 checkpoints verified, 0 damaged or missing objects\n")
    code, out, _ = verify("--json")
    assert code == 0
    assert json.loads(out) == {"version": 1, "run": "run", "checkpoints": 4, "problems": []}


def test_each_damaged_object_is_named_with_what_is_wrong_and_exit_code_3(verify: Verify, past: RunPlace) -> None:
    store = past.store()
    flipped = load_manifest(store, CheckpointRef(1, 20)).packs[0].key
    lost = load_manifest(store, CheckpointRef(2, 30)).packs[0].key
    flip(store, flipped)
    store.delete(lost)
    store.put(part_key(CheckpointRef(1, 10), 0), store.get(part_key(CheckpointRef(1, 20), 0)))
    store.put(manifest_key(CheckpointRef(1, 23)), store.get(manifest_key(CheckpointRef(1, 23)))[:-7])
    code, out, err = verify("--json")
    assert code == 3
    assert "4 damaged or missing objects" in err
    problems = {item["key"]: item for item in json.loads(out.splitlines()[0])["problems"]}
    assert {key: (item["kind"], item["checkpoints"]) for key, item in problems.items()} == {
        flipped: ("damaged", ["1/20"]),
        lost: ("missing", ["2/30"]),
        part_key(CheckpointRef(1, 10), 0): ("damaged", ["1/10"]),
        manifest_key(CheckpointRef(1, 23)): ("damaged", ["1/23"]),
    }
    assert "XXH3" in problems[flipped]["detail"]
    code, out, err = verify()
    assert code == 3
    assert all(key in out for key in problems)
    assert f"  {lost}: missing: a pack of" in out
    assert "(needed by 2/30)" in out


def test_damage_in_a_keyframe_tells_all_that_build_on_it(verify: Verify, played: Played) -> None:
    place = played(chained)
    manifest = load_manifest(place.store(), CheckpointRef(1, 10))
    master = next(frame for frame in manifest.frames if frame.component == "master")
    flip(place.store(), manifest.packs[master.pack].key, master.offset + master.length - 1)
    code, out, _ = verify("--json")
    (problem,) = json.loads(out.splitlines()[0])["problems"]
    assert (code, problem["checkpoints"]) == (3, ["1/10", "1/20", "1/30"])
    assert "builds on" not in problem["detail"]


def test_a_commit_that_cannot_be_read_or_is_gone_tells_what_it_takes_along(played: Played) -> None:
    place = played(chained)
    key = commit_key(CheckpointRef(1, 10))
    flip(place.store(), key, 30)
    (problem,) = verify_shelf(place).problems
    assert (problem.key, problem.kind, problem.checkpoints) == (key, "damaged", ("1/10", "1/20", "1/30"))
    place.store().delete(key)
    (problem,) = verify_shelf(place).problems
    assert (problem.key, problem.kind, problem.checkpoints) == (key, "missing", ("1/10", "1/20", "1/30"))
    assert "not deleted" in problem.detail


def test_what_retention_deleted_is_not_missed(played: Played) -> None:
    def prune(staff: Staff) -> None:
        for step in range(1, 9):
            staff.checkpoint(step, good=True)
        assert staff.ledger.record.deleted

    found = verify_shelf(played(prune))
    assert found.problems == ()
    assert 0 < found.checked < 8


def test_the_records_that_all_share_are_checked_too(past: RunPlace) -> None:
    store = past.store()
    flip(store, FORMAT_KEY)
    flip(store, generation_key(2))
    found = {problem.key: problem.checkpoints for problem in verify_shelf(past).problems}
    assert found == {FORMAT_KEY: ("1/10", "1/20", "1/23", "2/30"), generation_key(2): ("2/30",)}


def test_the_findings_read_well(past: RunPlace) -> None:
    flip(past.store(), generation_key(1))
    first, second = render_verified(verify_shelf(past)).splitlines()
    assert first == "4 checkpoints verified, 1 damaged or missing objects"
    assert second.startswith(f"  {generation_key(1)}: damaged: ")
    assert second.endswith("(needed by 1/10, 1/20, 1/23)")
