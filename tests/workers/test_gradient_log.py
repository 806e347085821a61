"""A run that keeps a gradient log: what was computed before a crash is taken from there, bit for bit, or computed again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.fragile_store import FragileStore
from tests.support.one_rank import tiny_config
from tests.workers.test_loop import STEPS, Rank

from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.runformat import ensure_format
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.messages import CheckpointRef, Directive, Heartbeat, HeartbeatReply, LogSpan, Tier
from stormsail.platform.storage.store import ObjectInfo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.filterwarnings("ignore"),
]  # DeepSpeed's own

REF = CheckpointRef(1, 5)
SPAN = LogSpan(1, 5, 9)
DROP = {"faults": [{"kind": "nonfinite", "step": 6}]}  # one of the steps to replay has no update


def logging(**changes: Any) -> RunConfig:
    checkpoint = {"every_steps": 5, "deadline_s": 30.0, "gradient_log": "store"}
    return tiny_config(**{"checkpoint": checkpoint, "drill": DROP, **changes})


def new_store() -> FragileStore:
    made = FragileStore()
    ensure_format(made)
    return made


@pytest.fixture(scope="module")
def past(one_rank: object) -> FragileStore:
    return new_store()


@pytest.fixture(scope="module")
def straight(past: FragileStore) -> Rank:
    """A run with the log on that nothing disturbed."""
    rank = Rank(past, logging())
    assert rank.run(Directive(1)) == "done"
    assert rank.log_broken == []
    return rank


def test_every_step_is_logged(straight: Rank, past: FragileStore) -> None:
    assert [info.key for info in past.list("log/")] == [log_key(1, step, 0) for step in range(STEPS)]


class Stubborn(FragileStore):
    """Does what it should, but for one entry of the log: that one fails, or takes until the test says so."""

    def __init__(self, step: int, *, until: threading.Event | None = None) -> None:
        super().__init__()
        self.key = log_key(1, step, 0)
        self.until = until

    def put(
        self, key: str, data: bytes | memoryview, *, if_none_match: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if key == self.key and self.until is None:
            raise StorageUnavailableError("Nobody answers")
        if key == self.key and self.until is not None:
            self.until.wait(30.0)
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match)


class Patient(Rank):
    """Lets the stubborn entry through once step 8 is done."""

    def __init__(self, store: Stubborn, config: RunConfig, done: threading.Event) -> None:
        self.done = done
        super().__init__(store, config)

    def _hear(self, beat: Heartbeat) -> HeartbeatReply:
        if any(row.step >= 8 for row in beat.rows):
            self.done.set()
        return super()._hear(beat)


def steps_logged(store: FragileStore, generation: int = 1) -> list[int]:
    return [int(info.key.split("/")[2]) for info in store.list(f"log/{generation:08d}/")]


def test_a_write_that_fails_ends_the_log_until_the_next_save_and_training_goes_on(straight: Rank) -> None:
    store = Stubborn(2)
    ensure_format(store)
    rank = Rank(store, logging())
    assert rank.run(Directive(1)) == "done"
    assert rank.losses == straight.losses
    assert [(generation, step) for generation, step, _ in rank.log_broken] == [(1, 2)]
    assert "Nobody answers" in rank.log_broken[0][2]
    assert steps_logged(store)[:2] == [0, 1]
    assert steps_logged(store)[-7:] == [5, 6, 7, 8, 9, 10, 11]
    assert 2 not in steps_logged(store)


def test_writes_that_come_late_end_it_too_and_training_does_not_wait(straight: Rank) -> None:
    done = threading.Event()
    store = Stubborn(1, until=done)
    ensure_format(store)
    rank = Patient(store, logging(), done)
    assert rank.run(Directive(1)) == "done"
    assert rank.losses == straight.losses
    assert rank.log_broken[0][:2] == (1, 5)
    assert rank.log_broken[0][2] == "4 earlier steps are still being written"


def test_an_fp32_repair_is_not_rounded_and_not_logged() -> None:
    store = new_store()
    faults = {"faults": [{"kind": "bf16_overflow", "step": 6, "steps": 3}]}
    rank = Rank(store, logging(drill=faults, nonfinite={"patience": 2}))
    rank.answers = [Directive(2, Tier.FP32_REPLAY, REF, precision="fp32", fp32_until=8)]
    assert rank.run(Directive(1)) == "done"
    assert steps_logged(store) == [0, 1, 2, 3, 4, 5, 6]
    assert steps_logged(store, 2) == [10, 11]
    assert rank.log_broken == []


def test_a_run_without_a_log_keeps_its_own_bits_and_writes_none() -> None:
    store = new_store()
    rank = Rank(store, tiny_config(drill=DROP))
    assert rank.run(Directive(1)) == "done"
    assert list(store.list("log/")) == []
