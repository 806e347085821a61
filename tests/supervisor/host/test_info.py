"""`host.json` survives a round trip and is never believed blindly."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor.host.identity import ProcessIdentity
from stormsail.supervisor.host.info import HostInfo, read_info, runtime_label, write_info


def example() -> HostInfo:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    return HostInfo(
        identity,
        runtime_label(),
        1.5,
        "/log",
        ray_address="127.0.0.1:1",
        ray_cpus=2,
        ray_token_file="/token",
        ray_session="/session",
        store_address=StoreAddress("s3://bucket", endpoint="http://127.0.0.1:2", credentials_file="/keys"),
        store_kind="embedded",
    )


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    write_info(path, example())
    assert read_info(path) == example()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_host_without_a_store_is_read_too(tmp_path: Path) -> None:
    info = replace(example(), store_address=None, store_kind="")
    write_info(tmp_path / "host.json", info)
    assert read_info(tmp_path / "host.json") == info


def test_missing_damaged_foreign_and_stale_files_are_no_host(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    assert read_info(path) is None
    path.write_text('{"identity": ')
    assert read_info(path) is None
    path.write_text(json.dumps({"of": "another version"}))
    assert read_info(path) is None
    write_info(path, replace(example(), identity=replace(example().identity, started="0")))
    assert read_info(path) is None


def test_a_host_on_another_machine_is_kept_for_the_reader_to_judge(tmp_path: Path) -> None:
    elsewhere = replace(example(), identity=replace(example().identity, machine="elsewhere", pid=2**22 + 1))
    write_info(tmp_path / "host.json", elsewhere)
    assert read_info(tmp_path / "host.json") == elsewhere


def test_the_label_names_python_ray_and_us() -> None:
    assert all(name in runtime_label() for name in ("python 3", " ray ", " stormsail "))
