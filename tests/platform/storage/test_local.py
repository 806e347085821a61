"""What is special about a folder as a store; the common promises are in `test_store.py`."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stormsail.platform.errors import StorageDeniedError, StorageUnavailableError
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.local_files import LOCK, TEMPORARY, TemporaryFile, locked

RACER = """
import sys
from pathlib import Path
from stormsail.platform.errors import PreconditionFailedError
from stormsail.platform.storage.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
sys.stdin.readline()
won = 0
for number in range(40):
    try:
        store.put(f"race/{number}", sys.argv[2].encode(), if_none_match=True)
        won += 1
    except PreconditionFailedError:
        pass
counted = 0
while counted < 20:
    body, info = store.get_with_info("counter")
    try:
        store.put("counter", b"%d" % (int(body) + 1), if_match=info.etag)
        counted += 1
    except PreconditionFailedError:
        pass
print(won)
"""


def test_objects_are_plain_files_under_their_keys(tmp_path: Path) -> None:
    LocalStore(tmp_path / "s").put("a/b.json", b"body")
    assert (tmp_path / "s" / "a" / "b.json").read_bytes() == b"body"


def test_processes_that_race_share_the_wins_and_lose_no_count(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("counter", b"0")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two", "three")
    ]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(wins) == 40
    assert LocalStore(tmp_path).get("counter") == b"60"


def test_what_a_dead_writer_left_is_not_an_object_and_is_removed_by_age(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    left = tmp_path / "a" / f"{TEMPORARY}0123456789abcdef-b"
    left.write_bytes(b"half")
    os.utime(left, (1.0, 1.0))
    fresh = tmp_path / "a" / f"{TEMPORARY}fedcba9876543210-b"
    fresh.write_bytes(b"being written")
    assert [info.key for info in store.list()] == ["a/b"]
    assert store.abort_stale_uploads("other/", older_than_s=3600) == 0
    assert store.abort_stale_uploads("a/b", older_than_s=3600) == 1
    assert not left.exists()
    assert fresh.exists()


def test_a_writer_that_finishes_while_leftovers_are_looked_for_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    uploads = [store.multipart(f"a/{name}") for name in "bc"]
    found = LocalStore._leftovers

    def finishing(self: LocalStore, prefix: str) -> Iterator[Path]:
        for path, upload in zip(sorted(found(self, prefix), key=lambda one: one.name[-1]), uploads, strict=True):
            if upload is uploads[0]:
                upload.complete()
            yield path

    monkeypatch.setattr(LocalStore, "_leftovers", finishing)
    assert store.abort_stale_uploads("", older_than_s=-60) == 1
    assert [info.key for info in store.list()] == ["a/b"]


def test_what_is_deleted_the_moment_it_is_there_was_put_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    publish = LocalStore._publish

    def deleted_at_once(self: LocalStore, file: TemporaryFile, key: str, **conditions: Any) -> None:
        publish(self, file, key, **conditions)
        other.delete(key)

    monkeypatch.setattr(LocalStore, "_publish", deleted_at_once)
    assert store.put("a/b", b"body").size_bytes == 4
    upload = store.multipart("a/c")
    upload.write(b"body")
    assert upload.complete().size_bytes == 4


def test_a_lock_that_is_never_free_ends_the_wait(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, timeout_s=0.05)
    etag = store.put("k", b"1", if_none_match=True).etag
    with locked(tmp_path, timeout_s=1.0):
        with pytest.raises(StorageUnavailableError, match=LOCK):
            store.put("k", b"2", if_match=etag)
        with pytest.raises(StorageUnavailableError):
            store.delete("k")
    assert store.get("k") == b"1"


def test_a_failed_put_leaves_no_file_behind(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, timeout_s=0.05)
    with locked(tmp_path, timeout_s=1.0), pytest.raises(StorageUnavailableError):
        store.put("k", b"2")
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_root_that_is_a_file_is_denied_in_clear_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = LocalStore(tmp_path / "file")
    for attempt in (lambda: store.put("k", b""), lambda: store.get("k"), lambda: list(store.list())):
        with pytest.raises(StorageDeniedError, match="file stands where a folder is needed"):
            attempt()


def test_a_place_where_nothing_can_be_written_is_denied_in_clear_words() -> None:
    for root in ("/sys/stormsail", "/proc/stormsail"):
        with pytest.raises(StorageDeniedError) as caught:
            LocalStore(Path(root)).put("k", b"")
        assert "storage.url" in caught.value.todo


def test_a_folder_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert list(LocalStore(tmp_path / "later").list()) == []
    assert not (tmp_path / "later").exists()


def test_a_key_cannot_lie_below_an_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"")
    with pytest.raises(StorageDeniedError, match="below another object"):
        store.put("a/b", b"")


def test_a_link_out_of_the_folder_is_followed_only_where_the_user_made_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "linked").symlink_to(tmp_path / "elsewhere")
    LocalStore(tmp_path / "store").put("linked/k", b"v")
    assert (tmp_path / "elsewhere" / "k").read_bytes() == b"v"


def test_a_store_in_a_folder_travels(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("k", b"v")
    again = pickle.loads(pickle.dumps(store))
    assert again.get("k") == b"v"
    assert again.url == store.url == tmp_path.as_uri()
