"""What a worker is started with; running one is tested on a cluster."""

from __future__ import annotations

import pickle

from stormsail.platform.storage.store import StoreAddress
from stormsail.workers.entry import Assignment


def test_an_assignment_travels_to_the_workers() -> None:
    made = Assignment("run:run", 2, "{}", StoreAddress("file:///x"), ("/code",), "/logs")
    assert pickle.loads(pickle.dumps(made)) == made
