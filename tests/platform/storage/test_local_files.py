"""Durable files, one winner, and every system error told clearly."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from stormsail.platform.errors import (
    InternalError,
    ObjectMissingError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from stormsail.platform.storage.local_files import (
    TemporaryFile,
    check_absolute,
    file_etag,
    locked,
    make_folder,
    read_range,
    storage_error,
    told_clearly,
)

SHA_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EROFS, StorageDeniedError),
        (errno.EACCES, StorageDeniedError),
        (errno.EPERM, StorageDeniedError),
        (errno.ENOTDIR, StorageDeniedError),
        (errno.ENOENT, ObjectMissingError),
        (errno.EIO, StorageUnavailableError),
        (errno.ESTALE, StorageUnavailableError),
        (errno.ENAMETOOLONG, StorageError),
    ],
)
def test_a_system_error_becomes_the_storage_error_that_it_means(number: int, error: type[StorageError]) -> None:
    told = storage_error(OSError(number, os.strerror(number)), "/some/file")
    assert type(told) is error
    assert told.where == "/some/file"
    assert os.strerror(number) in told.what or error is ObjectMissingError


def test_a_full_disk_is_told_as_full() -> None:
    with pytest.raises(StorageFullError, match="No space left"), told_clearly("/dev/full"):
        Path("/dev/full").write_bytes(b"x")


def test_a_temporary_file_becomes_its_target_once(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    first, second = TemporaryFile(target), TemporaryFile(target)
    first.write(b"first")
    second.write(b"second")
    first.finish()
    second.finish()
    assert first.publish_new()
    assert not second.publish_new()
    second.discard()
    second.discard()
    assert target.read_bytes() == b"first"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_discarded_file_leaves_nothing(tmp_path: Path) -> None:
    file = TemporaryFile(tmp_path / "t")
    file.write(b"x")
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_etag_is_the_sha256_of_the_body(tmp_path: Path) -> None:
    file = TemporaryFile(tmp_path / "t")
    file.write(b"a")
    file.write(memoryview(b"bc"))
    assert file.finish() == SHA_OF_ABC
    assert file.publish_new()
    assert file_etag(tmp_path / "t") == SHA_OF_ABC


def test_the_noted_etag_is_not_believed_once_the_file_changed(tmp_path: Path) -> None:
    file = TemporaryFile(tmp_path / "t")
    file.write(b"something else")
    file.finish()
    file.publish_new()
    (tmp_path / "t").write_bytes(b"abc")
    assert file_etag(tmp_path / "t") == SHA_OF_ABC


def test_a_file_without_a_note_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"abc")
    assert file_etag(tmp_path / "t") == SHA_OF_ABC


def test_the_lock_excludes_and_its_wait_ends(tmp_path: Path) -> None:
    with (
        locked(tmp_path, timeout_s=5.0),
        pytest.raises(StorageUnavailableError, match=r"held the lock for 0\.05 s"),
        locked(tmp_path, timeout_s=0.05),
    ):
        raise AssertionError
    with locked(tmp_path, timeout_s=0.05):
        pass


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    held, order = threading.Event(), []

    def hold() -> None:
        with locked(tmp_path, timeout_s=5.0):
            held.set()
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(5.0)
    with locked(tmp_path, timeout_s=5.0):
        order.append("second")
    thread.join(5.0)
    assert order == ["first", "second"]


def test_folders_are_made_by_many_at_once(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    threads = [threading.Thread(target=make_folder, args=(deep,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
    assert deep.is_dir()


def test_a_folder_that_cannot_be_made_is_denied() -> None:
    with pytest.raises(StorageDeniedError), told_clearly("x"):
        make_folder(Path("/proc/stormsail/x"))


def test_a_range_of_a_file_is_what_a_slice_would_be(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert read_range(tmp_path / "f", 2, 5) == b"234"
    assert read_range(tmp_path / "f", 8, None) == b"89"
    assert read_range(tmp_path / "f", 20, 30) == b""


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(InternalError):
        check_absolute(Path("relative"))
