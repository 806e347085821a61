"""Two Ray nodes on one machine, with a vault each: what they do is printed as JSON, one fact a line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.log_place import NodeLog
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import write_part
from stormsail.platform.config.model import RunConfig
from stormsail.platform.home import Home
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.vault.folder import VaultFolder
from stormsail.platform.vault.image import WORD_BYTES, describe, offsets
from stormsail.platform.vault.keeper import CHUNK_BYTES
from stormsail.platform.vault.slots import Slot
from stormsail.supervisor.vaults import Vaults
from stormsail.workers.places import Places
from stormsail.workers.vault_link import NAMESPACE, RayVaultLink, vault_name

SUPERVISOR = "run:two-nodes"
RUN_URL = "file:///two-nodes"
ELEMENTS = 5_000_000  # more than one message
VAULT_GIB = 0.5
TOO_MUCH_BYTES = 70 << 20  # more than the buddy keeps of another node's log


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    try:
        play(Path(sys.argv[1]))
    finally:
        ray.shutdown()
        cluster.shutdown()


def play(logs: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    config = RunConfig.model_validate(
        {
            "name": "two-nodes",
            "train": {"steps": 10},
            "schedule": {"warmup_steps": 1},
            "checkpoint": {"vault_gib": VAULT_GIB},
        }
    )
    vaults = Vaults(config, SUPERVISOR, RUN_URL, str(logs), {"STORMSAIL_HOME": str(Home.here().path)})

    def tell(kind: str, **more: Any) -> None:
        told.append((kind, more))

    def seen(count: int) -> bool:
        vaults.look(tell)
        return len(told) >= count

    vaults.open()
    wait(lambda: seen(2), "word of both vaults")
    say("opened", [(kind, more["buddy"]) for kind, more in told])
    here, there = sorted(str(node["NodeID"]) for node in ray.nodes())
    places = {node: make_places(node, tell) for node in (here, there)}
    slot, words = snapshot(places[here])
    ref = CheckpointRef(1, 10)
    wait(lambda: len(list(places[there].link.elsewhere(ref))) > 0, "the image on its own node")  # type: ignore[union-attr]
    wait(lambda: len(list(places[there].images(ref))) == 2, "a copy on the buddy")
    copy, original = list(places[there].images(ref))
    say("places", [copy.place, original.place])
    for image in (copy, original):
        image.load(image.record.pieces)
        for piece in image.record.pieces:
            image.check(piece)
        say("same", bool(np.array_equal(image.words(0, ELEMENTS), words)))
        image.close()
    actor = ray.get_actor(vault_name(SUPERVISOR, here), namespace=NAMESPACE)
    key, entry = log_key(1, 10, 0), os.urandom(CHUNK_BYTES + 1)
    log(here).put(key, entry)
    wait(lambda: [info.key for info in log(there).list("log/")] == [key], "the entry where it was written")
    wait(lambda: copy_of_log(there, key) is not None, "a copy of the log on the buddy")
    say("log", [copy_of_log(there, key) == entry, log(there).get(key) == entry])
    told.clear()
    log(here).put(log_key(1, 11, 0), bytes(TOO_MUCH_BYTES))
    wait(lambda: seen(1), "word of what was not copied")
    say("uncopied", [(kind, "vault_gib" in more["why"]) for kind, more in told])
    told.clear()
    os.kill(ray.get(actor.state.remote(), timeout=200.0).pid, signal.SIGKILL)
    wait(lambda: seen(1), "word of the vault's restart")
    say("restarted", [(kind, more.get("images")) for kind, more in told])
    say("still there", len(ray.get(actor.images.remote(ref), timeout=200.0)))
    slot.close()
    again = places[here].acquire(ELEMENTS * WORD_BYTES)
    say("slots come back", slot.path in [found.path for found in again])
    vaults.end()
    folders = [VaultFolder.of(Home.here(), RUN_URL, node).path for node in (here, there)]
    say("left", [path.exists() for path in folders])


def log(node: str) -> NodeLog:
    folder = VaultFolder.of(Home.here(), RUN_URL, node)
    return NodeLog(folder.stores, MemoryStore(), RayVaultLink(SUPERVISOR, node, 0, 1))


def copy_of_log(node: str, key: str) -> bytes | None:
    """What the vault itself has, without asking others."""
    actor = ray.get_actor(vault_name(SUPERVISOR, node), namespace=NAMESPACE)
    found: bytes | None = ray.get(actor.log_entry.remote(key), timeout=30.0)
    return found


def make_places(node: str, tell: Callable[..., None]) -> Places:
    link = RayVaultLink(SUPERVISOR, node, 0, 1)
    return Places(0, 2, VaultFolder.of(Home.here(), RUN_URL, node), link, tell)


def snapshot(places: Places) -> tuple[Slot, np.ndarray]:
    """What a rank does at a save."""
    spec = ShardSpec("w", "master", (ELEMENTS,), 0, ELEMENTS)
    starts, size = offsets([spec])
    slot = places.acquire(size)[0]
    slot.begin()
    words = np.random.default_rng(1).normal(size=ELEMENTS).astype(np.float32).view(np.uint32)
    slot.words[:ELEMENTS] = words
    shards = [Shard(spec, slot.words[:ELEMENTS].view(np.float32))]
    store = MemoryStore()
    ensure_format(store)
    part = write_part(store, generation=1, step=10, rank=0, world_size=1, shards=shards, cancelled=lambda: False)
    slot.seal(describe(part, shards, starts))
    places.sealed(slot)
    return slot, words


def wait(enough: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 200.0
    while not enough():
        if time.monotonic() > deadline:
            sys.exit(f"no {what} in time")
        time.sleep(0.2)


def say(name: str, fact: object) -> None:
    sys.stdout.write(f"{json.dumps([name, fact])}\n")


if __name__ == "__main__":
    main()
