"""Builds boto3 clients: credentials, limits, and one client per server and process, renewed on demand.

A client costs a fifth of a second and a pool of connections, so that all stores of one server share one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from stormsail.platform import exact_json
from stormsail.platform.errors import StorageDeniedError
from stormsail.platform.storage.s3_sockets import pace_requests
from stormsail.platform.storage.store import StoreAddress

_CONNECT_S = 10.0
_TRIES = 2  # of one request, by botocore; whole operations are repeated by `retry.Retries`
_CONNECTIONS = 32
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class ClientSource:
    """Hands out the client of this process; safe from any thread, and across a fork.

    Args:
        address: Where and how to connect.
    """

    _shared: ClassVar[dict[StoreAddress, ClientSource]] = {}
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._client: Any = None
        self._pid = 0

    @classmethod
    def of(cls, address: StoreAddress) -> ClientSource:
        """The source that all stores with these credentials on this server share, whatever their prefix."""
        server = replace(address, url="")
        with cls._sharing:
            return cls._shared.setdefault(server, cls(server))

    def get(self) -> Any:
        """The client; made on first use, since importing boto3 takes a while."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client = _build(self._address)
                self._pid = os.getpid()
            return self._client

    def renew(self) -> None:
        """Forget the client and its session, so that the next one reads the credentials again."""
        with self._lock:
            self._client = None


def _build(address: StoreAddress) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        signature_version="s3v4",
        connect_timeout=min(address.timeout_s, _CONNECT_S),
        read_timeout=address.timeout_s,
        # `max_attempts` would count retries, `total_max_attempts` counts tries.
        retries={"mode": "standard", "total_max_attempts": _TRIES},
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
        request_checksum_calculation=address.checksums,
        response_checksum_validation=address.checksums,
        s3=_s3_ways(address),
        user_agent_extra="stormsail",
    )
    session = boto3.Session(profile_name=address.profile, region_name=address.region, **_keys(address))
    region = session.region_name or "us-east-1"
    client = session.client("s3", endpoint_url=address.endpoint, region_name=region, config=config)
    pace_requests(client, address.timeout_s)
    return client


def _s3_ways(address: StoreAddress) -> dict[str, object]:
    # S3-like servers seldom have a host name per bucket.
    ways: dict[str, object] = {"addressing_style": "path" if address.endpoint else "auto"}
    if address.checksums == "when_supported" and _is_local(address.endpoint):
        # The embedded server: it compares the checksum that goes with each body, and that is signed. Hashing a body once
        # more for the signature, here and there, costs more than sending it. Other servers get botocore's own choice.
        ways["payload_signing_enabled"] = False
    return ways


def _is_local(endpoint: str | None) -> bool:
    """Whether what is sent stays on this machine, in plain text."""
    parts = urlsplit(endpoint or "")
    return parts.scheme == "http" and parts.hostname in _LOOPBACK


def _keys(address: StoreAddress) -> dict[str, str]:
    if address.credentials_file is None:
        return {}
    todo = "Start the run again on the machine that made the file, or point at a store of your own."
    try:
        held = exact_json.loads(Path(address.credentials_file).read_bytes())
    except (OSError, ValueError) as error:
        what = f"The store's credentials cannot be read: {error}"
        raise StorageDeniedError(what, where=address.credentials_file, todo=todo) from error
    if not isinstance(held, dict) or not {"access_key", "secret_key"} <= held.keys():
        raise StorageDeniedError("The file lacks access_key or secret_key", where=address.credentials_file, todo=todo)
    return {"aws_access_key_id": str(held["access_key"]), "aws_secret_access_key": str(held["secret_key"])}
