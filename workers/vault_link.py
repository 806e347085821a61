"""A rank's line to the vaults, over Ray: slots on its own node, and images on the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stormsail.platform.checkpoint.records import unseal
from stormsail.platform.errors import CheckpointError, ClusterError, StormsailError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.store import ObjectInfo
from stormsail.platform.vault.image import ImageRecord
from stormsail.platform.vault.images import Image
from stormsail.platform.vault.keeper import chunks
from stormsail.platform.vault.places import BUDDY
from stormsail.platform.vault.slots import Bytes

NAMESPACE = "stormsail"
_CALL_S = 60.0


def vault_name(supervisor: str, node: str) -> str:
    """The actor name of a run's vault on a node; a supervisor's begins otherwise."""
    return f"vault-{node[:12]}:{supervisor}"


@dataclass(frozen=True, slots=True)
class RayVaultLink:
    """A `VaultLink` over Ray.

    Attributes:
        supervisor: Actor name of the run's supervisor.
        node: Ray's id of this node.
        rank: This rank.
        ranks_here: Ranks on this node.
    """

    supervisor: str
    node: str
    rank: int
    ranks_here: int

    def slots(self, size_bytes: int, wanted: int) -> Sequence[str]:
        """See `VaultLink.slots`.

        Raises:
            ClusterError: There is no vault on this node, or it does not answer.
        """
        names: list[str] = self._ask(self.node, "slots", self.rank, size_bytes, wanted, self.ranks_here)
        return names

    def sealed(self, slot: str) -> None:
        """See `VaultLink.sealed`."""
        handle = self._handle(self.node)
        if handle is not None:
            handle.sealed.remote(slot)

    def elsewhere(self, ref: CheckpointRef) -> Iterator[Image]:
        """See `VaultLink.elsewhere`. A vault that does not answer is passed over."""
        for node, address in self._others():
            yield from self._images_of(node, address, ref)

    def logged(self, key: str) -> None:
        """See `Elsewhere.logged`."""
        handle = self._handle(self.node)
        if handle is not None:
            handle.logged.remote(key)

    def spared(self, step: int) -> None:
        """See `Elsewhere.spared`."""
        handle = self._handle(self.node)
        if handle is not None:
            handle.log_spared.remote(step)

    def log_infos(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """See `Elsewhere.log_infos`. A vault that does not answer is passed over."""
        for node, _ in self._others():
            with contextlib.suppress(ClusterError):  # gone with its node: nothing is there
                yield from self._ask(node, "log_infos", prefix, start_after)

    def log_entry(self, key: str) -> bytes | None:
        """See `Elsewhere.log_entry`. A vault that does not answer is passed over."""
        for node, _ in self._others():
            with contextlib.suppress(ClusterError):
                found: bytes | None = self._ask(node, "log_entry", key)
                if found is not None:
                    return found
        return None

    def _others(self) -> Iterator[tuple[str, str]]:
        """Id and address of the other nodes that have a vault."""
        import ray

        for node in ray.nodes():
            name = str(node["NodeID"])
            if node["Alive"] and name != self.node and self._handle(name) is not None:
                yield name, str(node["NodeManagerAddress"])

    def _images_of(self, node: str, address: str, ref: CheckpointRef) -> Iterator[Image]:
        try:
            found: list[tuple[str, bytes]] = self._ask(node, "images", ref)
        except StormsailError:
            return  # gone with its node: nothing is there
        for slot, stored in found:
            try:
                record = unseal(stored, ImageRecord, slot)
            except CheckpointError:
                continue  # no image for us; neither the others nor the checkpoint are any worse for it
            yield self._image(node, address, slot, record)

    def _image(self, node: str, address: str, slot: str, record: ImageRecord) -> Image:
        def fetch(start: int, stop: int, target: Bytes) -> None:
            for first, last in chunks(start, stop):
                data: bytes = self._ask(node, "read", slot, first, last)
                if len(data) != last - first:
                    raise CheckpointError("the vault answered short", where=address)
                target[first - start : last - start] = np.frombuffer(data, dtype=np.uint8)

        def discard() -> None:
            handle = self._handle(node)
            if handle is not None:
                handle.discard.remote(slot)

        return Image(
            BUDDY,
            f"vault on {address}, rank {record.rank}",
            record,
            np.empty(record.size_bytes, dtype=np.uint8),
            discard=discard,
            fetch=fetch,
        )

    def _handle(self, node: str) -> Any:
        import ray

        try:
            return ray.get_actor(vault_name(self.supervisor, node), namespace=NAMESPACE)
        except ValueError:
            return None

    def _ask(self, node: str, method: str, *args: Any) -> Any:
        import ray
        from ray.exceptions import RayError, RayTaskError

        handle = self._handle(node)
        if handle is None:
            raise ClusterError("there is no vault on this node", where=node[:12])
        try:
            return ray.get(getattr(handle, method).remote(*args), timeout=_CALL_S)
        except RayTaskError as error:
            if isinstance(error.cause, StormsailError):
                raise error.cause from error
            raise ClusterError(f"the vault failed: {error.cause}", where=node[:12]) from error
        except RayError as error:
            raise ClusterError(
                f"the vault did not answer {method!r}: {type(error).__name__}", where=node[:12]
            ) from error
