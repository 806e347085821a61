"""From sections and URLs to stores, with one clear error for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.errors import ConfigError
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.open import address_from_config, check_url, open_store
from stormsail.platform.storage.s3 import S3Store
from stormsail.platform.storage.store import StoreAddress


def test_a_file_url_opens_a_folder(tmp_path: Path) -> None:
    store = open_store(StoreAddress(f"file://{tmp_path}/with%20space"))
    assert isinstance(store, LocalStore)
    store.put("k", b"v")
    assert (tmp_path / "with space" / "k").read_bytes() == b"v"


def test_an_s3_url_opens_a_bucket_and_contacts_nobody() -> None:
    store = open_store(StoreAddress("s3://bucket/prefix"))
    assert isinstance(store, S3Store)
    assert store.url == "s3://bucket/prefix"


def test_a_child_address_is_a_folder_of_its_parent(tmp_path: Path) -> None:
    parent = StoreAddress(f"file://{tmp_path}")
    open_store(parent.child("run")).put("k", b"v")
    assert open_store(parent).get("run/k") == b"v"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("bucket/prefix", "no scheme"),
        ("gs://bucket", "gs:// is no kind of store"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://localhost:9000/bucket", "storage.endpoint"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/a b", "prefix"),
        ("s3://bucket/../x", "prefix"),
        ("s3://bucket/p?versionId=1", "'?'"),
        ("file://relative/path", "file:///relative/path"),
        ("file:relative", "absolute"),
        ("file:///", "absolute"),
        ("file:///a/../b", "upwards"),
        ("embedded", "no scheme"),
    ],
)
def test_a_url_that_is_no_store_is_told_why(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_url(url)
    assert words in str(caught.value)
    assert caught.value.where == "storage.url"


def test_embedded_means_the_running_one_with_the_sections_limits() -> None:
    running = StoreAddress("s3://stormsail", endpoint="http://127.0.0.1:1", credentials_file="/k")
    section = StorageSection(checksums="when_required", timeout_s=5.0)
    address = address_from_config(section, running, environ={})
    assert address == StoreAddress(
        "s3://stormsail",
        endpoint="http://127.0.0.1:1",
        credentials_file="/k",
        checksums="when_required",
        timeout_s=5.0,
    )


def test_embedded_without_one_says_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match="no embedded store") as caught:
        address_from_config(StorageSection(), None, environ={})
    assert "s3://" in caught.value.todo


def test_the_environment_fills_what_the_section_leaves_open() -> None:
    environ = {"AWS_ENDPOINT_URL_S3": "http://minio:9000", "AWS_DEFAULT_REGION": "eu-west-1", "AWS_PROFILE": "me"}
    address = address_from_config(StorageSection(url="s3://bkt/p/"), None, environ=environ)
    assert address == StoreAddress("s3://bkt/p", endpoint="http://minio:9000", region="eu-west-1", profile="me")


def test_the_section_wins_over_the_environment() -> None:
    section = StorageSection(url="s3://bkt", endpoint="http://a", region="r", profile="p")
    environ = {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_REGION": "eu-west-1", "AWS_PROFILE": "me"}
    address = address_from_config(section, None, environ=environ)
    assert (address.endpoint, address.region, address.profile) == ("http://a", "r", "p")


def test_a_folder_takes_nothing_from_the_aws_environment() -> None:
    environ = {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}
    address = address_from_config(StorageSection(url="file:///data/runs"), None, environ=environ)
    assert address == StoreAddress("file:///data/runs")


@pytest.mark.parametrize("url", ["embedded", "file:///data"])
@pytest.mark.parametrize("key", ["endpoint", "region", "profile"])
def test_s3_settings_without_s3_are_refused(url: str, key: str) -> None:
    section = StorageSection.model_validate({"url": url, key: "x"})
    with pytest.raises(ConfigError, match=f"storage.{key} belongs to s3://"):
        address_from_config(section, StoreAddress("s3://e"), environ={})
