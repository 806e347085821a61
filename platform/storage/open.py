"""From a storage section or an address to an open store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stormsail.platform.config.infrastructure import StorageSection
from stormsail.platform.errors import ConfigError
from stormsail.platform.storage.keys import is_key
from stormsail.platform.storage.local import LocalStore
from stormsail.platform.storage.store import ObjectStore, StoreAddress

EMBEDDED = "embedded"

_FORMS = "Write s3://bucket/prefix, file:///absolute/folder or embedded."
_BUCKET = re.compile(r"[a-z0-9A-Z][a-z0-9A-Z._-]{1,62}")


def open_store(address: StoreAddress) -> ObjectStore:
    """Open the store at an address. Nothing is contacted yet.

    Raises:
        ConfigError: The URL is not one of a store.
    """
    scheme = check_url(address.url)
    if scheme == "file":
        return LocalStore(Path(unquote(urlsplit(address.url).path)), timeout_s=address.timeout_s)
    from stormsail.platform.storage.s3 import S3Store

    return S3Store(address)


def address_from_config(
    section: StorageSection, embedded: StoreAddress | None, *, environ: Mapping[str, str] = os.environ
) -> StoreAddress:
    """The address that the storage section means, with what the environment adds to it today.

    Args:
        section: The run's storage section.
        embedded: The running embedded store (or the folder that stands in for it), or None.
        environ: Read once, here: processes elsewhere get the address and not the environment.

    Raises:
        ConfigError: The section contradicts itself, or asks for an embedded store that is not there.
    """
    if section.url == EMBEDDED:
        return _embedded_address(section, embedded)
    scheme = check_url(section.url)
    if scheme == "file":
        _refuse_s3_keys(section)
        return StoreAddress(url=section.url.rstrip("/"), timeout_s=section.timeout_s)
    return StoreAddress(
        url=section.url.rstrip("/"),
        endpoint=section.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None,
        region=section.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
        profile=section.profile or environ.get("AWS_PROFILE") or None,
        checksums=section.checksums,
        timeout_s=section.timeout_s,
    )


def check_url(url: str) -> str:
    """Return the scheme, `s3` or `file`, of a URL that can be a store's.

    Raises:
        ConfigError: It cannot; the message says why.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise _wrong(url, "it has a part after '?' or '#'")
    if parts.scheme == "s3":
        _check_s3(url, parts.netloc, parts.path)
    elif parts.scheme == "file":
        _check_file(url, parts.netloc, unquote(parts.path))
    else:
        raise _wrong(url, f"{parts.scheme}:// is no kind of store" if parts.scheme else "it has no scheme")
    return parts.scheme


def _check_s3(url: str, bucket: str, path: str) -> None:
    if not bucket:
        raise _wrong(url, "it names no bucket")
    if not _BUCKET.fullmatch(bucket):
        raise _wrong(url, f"{bucket!r} cannot be a bucket's name; an endpoint belongs in storage.endpoint")
    prefix = path.removeprefix("/").removesuffix("/")
    if prefix and not is_key(prefix):
        raise _wrong(url, f"the prefix {prefix!r} may only have '/'-separated segments of A-Z a-z 0-9 . _ -")


def _check_file(url: str, host: str, path: str) -> None:
    if host:
        raise _wrong(
            url, f"{host!r} stands where a host would; an absolute path has three slashes: file:///{host}{path}"
        )
    if not path.startswith("/") or path.strip("/") == "":
        raise _wrong(url, "it names no folder by its absolute path")
    if ".." in path.split("/"):
        raise _wrong(url, "it goes upwards with '..'")


def _embedded_address(section: StorageSection, embedded: StoreAddress | None) -> StoreAddress:
    _refuse_s3_keys(section)
    if embedded is None:
        what = "storage.url is `embedded`, but no embedded store runs here"
        raise ConfigError(what, where="storage.url", todo="Set storage.url to s3://bucket/prefix or file:///folder.")
    return replace(embedded, checksums=section.checksums, timeout_s=section.timeout_s)


def _refuse_s3_keys(section: StorageSection) -> None:
    for key in ("endpoint", "region", "profile"):
        if getattr(section, key) is not None:
            what = f"storage.{key} belongs to s3:// and means nothing with {section.url!r}"
            raise ConfigError(what, where=f"storage.{key}", todo="Remove it, or set storage.url to s3://bucket/prefix.")


def _wrong(url: str, why: str) -> ConfigError:
    return ConfigError(f"{url!r} is not a store: {why}", where="storage.url", todo=_FORMS)
