"""Clients are shared by server, renewed on demand, and built from the address alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stormsail.platform.errors import StorageDeniedError
from stormsail.platform.storage.s3_client import ClientSource, _s3_ways
from stormsail.platform.storage.store import StoreAddress


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    keys = tmp_path / "keys.json"
    keys.write_text('{"access_key": "a", "secret_key": "s"}')
    return StoreAddress("s3://b/x", endpoint="http://127.0.0.1:9", credentials_file=str(keys), timeout_s=7.0)


def test_stores_of_one_server_share_a_client(address: StoreAddress) -> None:
    assert ClientSource.of(address) is ClientSource.of(address.child("run"))
    assert ClientSource.of(address) is not ClientSource.of(replace(address, timeout_s=8.0))
    assert ClientSource.of(address).get() is ClientSource.of(address).get()


def test_a_renewed_client_reads_the_keys_again(address: StoreAddress) -> None:
    source = ClientSource(address)
    assert source.get()._request_signer._credentials.access_key == "a"
    Path(address.credentials_file or "").write_text('{"access_key": "b", "secret_key": "s"}')
    assert source.get()._request_signer._credentials.access_key == "a"
    source.renew()
    assert source.get()._request_signer._credentials.access_key == "b"


def test_the_limits_and_settings_of_the_address_reach_the_client(address: StoreAddress) -> None:
    config = ClientSource(replace(address, checksums="when_required")).get().meta.config
    assert (config.read_timeout, config.connect_timeout) == (7.0, 7.0)
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert config.retries["total_max_attempts"] == 2
    assert config.s3["addressing_style"] == "path"


@pytest.mark.parametrize(
    ("endpoint", "checksums", "signed"),
    [
        ("http://127.0.0.1:9", "when_supported", False),
        ("http://[::1]:9", "when_supported", False),
        ("http://localhost:9", "when_supported", False),
        ("http://127.0.0.1:9", "when_required", None),
        ("https://127.0.0.1:9", "when_supported", None),
        ("http://10.0.0.7:9", "when_supported", None),
        ("http://127.0.0.1.example.com", "when_supported", None),
        (None, "when_supported", None),
    ],
)
def test_only_on_this_machine_does_the_checksum_alone_guard_a_body(
    address: StoreAddress, endpoint: str | None, checksums: str, signed: bool | None
) -> None:
    ways = _s3_ways(replace(address, endpoint=endpoint, checksums=checksums))
    assert ways.get("payload_signing_enabled") is signed


def test_what_the_address_says_of_signing_reaches_the_client(address: StoreAddress) -> None:
    assert ClientSource(address).get().meta.config.s3["payload_signing_enabled"] is False


def test_a_missing_keys_file_is_told(address: StoreAddress, tmp_path: Path) -> None:
    with pytest.raises(StorageDeniedError, match="cannot be read") as caught:
        ClientSource(replace(address, credentials_file=str(tmp_path / "none"))).get()
    assert caught.value.where == str(tmp_path / "none")


@pytest.mark.parametrize("content", ["{", "[]", '{"access_key": "a"}'])
def test_a_damaged_keys_file_is_told(address: StoreAddress, content: str) -> None:
    Path(address.credentials_file or "").write_text(content)
    with pytest.raises(StorageDeniedError):
        ClientSource(address).get()
