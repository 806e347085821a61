"""What a rank makes of another vault's answers; tests/cluster/test_vaults.py runs both ends over Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stormsail.platform.checkpoint.records import seal
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.vault.image import ImageRecord
from stormsail.workers.vault_link import RayVaultLink

REF = CheckpointRef(1, 10)


class OneBuddy(RayVaultLink):
    """Another node whose vault holds three images; one record comes with a turned bit."""

    def _others(self) -> Iterator[tuple[str, str]]:
        yield "node", "address"

    def _ask(self, _node: str, _method: str, *_args: Any) -> Any:
        sealed = [
            seal(ImageRecord(generation=REF.generation, step=REF.step, rank=rank, names=(), pieces=()))
            for rank in range(3)
        ]
        damaged = sealed[1][:-5] + bytes([sealed[1][-5] ^ 1]) + sealed[1][-4:]
        return [("0", sealed[0]), ("1", damaged), ("2", sealed[2])]


def test_a_damaged_record_is_passed_over_and_takes_no_other_image_with_it() -> None:
    link = OneBuddy(supervisor="run", node="here", rank=0, ranks_here=1)
    assert [image.where for image in link.elsewhere(REF)] == ["vault on address, rank 0", "vault on address, rank 2"]
