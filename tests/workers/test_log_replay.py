"""What was computed before a crash is taken from the log, bit for bit; what cannot be used there is computed again."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.support.fragile_store import FragileStore
from tests.support.user_factories import Numbers
from tests.workers.test_gradient_log import logging, new_store
from tests.workers.test_loop import STEPS, Rank

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.checkpoint.keys import log_key
from stormsail.platform.checkpoint.log_entry import pack_entry, unpack_entry
from stormsail.platform.config.evaluation import EvalSection
from stormsail.platform.errors import StorageUnavailableError
from stormsail.platform.messages import CheckpointRef, Directive, LogSpan, Tier
from stormsail.platform.storage.memory import MemoryStore
from stormsail.workers import log_replay

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.filterwarnings("ignore"),
]  # DeepSpeed's own

REF = CheckpointRef(1, 5)
SPAN = LogSpan(1, 5, 9)


@pytest.fixture(scope="module")
def past(one_rank: object) -> FragileStore:
    return new_store()


@pytest.fixture(scope="module")
def straight(past: FragileStore) -> Rank:
    """A run with the log on that nothing disturbed; one of the steps to replay has no update."""
    rank = Rank(past, logging())
    assert rank.run(Directive(1)) == "done"
    return rank


def root(store: FragileStore, generation: int) -> str:
    return load_manifest(store, CheckpointRef(generation, STEPS)).root


def test_a_replay_leads_to_the_same_bits_as_the_steps_that_it_stands_for(straight: Rank, past: FragileStore) -> None:
    rank = Rank(past, logging())
    directive = Directive(2, Tier.RESUME, REF, replay=(SPAN,), expected_losses=tuple(straight.losses[9:]), exact=True)
    assert rank.run(directive) == "done"
    assert (rank.incidents, rank.refused) == ([], [])
    assert root(past, 2) == root(past, 1)
    assert [row.step for row in rank.rows] == list(range(5, STEPS))
    assert rank.losses[4:] == straight.losses[9:]
    assert [row.applied for row in rank.rows] == [row.applied for row in straight.rows[5:]]
    assert rank.session.detector == straight.session.detector
    assert rank.line("log.replayed")["from_step"] == 5
    assert rank.line("state.restored")["step"] == 9


def test_rows_that_died_with_the_process_are_told_again(straight: Rank, past: FragileStore) -> None:
    rank = Rank(past, logging())
    rank.run(Directive(3, Tier.RESUME, REF, replay=(SPAN,)))
    before = [replace(row, generation=3, values={}) for row in straight.rows[5:9]]  # values come when a row is sent
    assert rank.rows[:4] == before


def test_the_initial_state_may_be_gone_on_from_too(straight: Rank, past: FragileStore) -> None:
    rank = Rank(past, logging())
    assert rank.run(Directive(4, Tier.RESUME, None, replay=(LogSpan(1, 0, 7),))) == "done"
    assert root(past, 4) == root(past, 1)
    assert rank.line("state.restored")["step"] == 7


def test_a_checkpoint_that_was_due_where_the_log_ends_is_made_up_for_and_so_is_an_evaluation(
    straight: Rank, past: FragileStore
) -> None:
    """The evaluation is then the first pass that the engine makes at all."""
    rank = Rank(past, logging().model_copy(update={"eval": EvalSection(every_steps=5)}), held_out=Numbers(5))
    rank.run(Directive(5, Tier.RESUME, REF, replay=(LogSpan(1, 5, 10),)))
    made, first = load_manifest(past, CheckpointRef(5, 10)), load_manifest(past, CheckpointRef(1, 10))
    assert made.root == first.root
    said = [(fields["step"], fields["loss"]) for kind, fields in rank.lines if kind == "evaluation.finished"]
    assert [step for step, _ in said] == [10, STEPS]
    assert made.meta.eval_loss == said[0][1] is not None
    assert root(past, 5) == root(past, 1)


def damaged(store: FragileStore, how: str) -> FragileStore:
    """A copy of the store with one entry that cannot be used."""
    made = new_store()
    for info in store.list():
        made.put(info.key, store.get(info.key))
    key = log_key(1, 7, 0)
    entry, bits = unpack_entry(made.get(key), key)
    body = bytearray(made.get(key))
    body[len(body) // 2] ^= 1
    bodies = {
        "a flipped bit": bytes(body),
        "another step's entry": made.get(log_key(1, 8, 0)),
        "another world's entry": pack_entry(replace(entry, world_size=2), bits),
        "another model's entry": pack_entry(replace(entry, layout="0" * 32), bits),
        "another outcome": pack_entry(replace(entry, state_sum=entry.state_sum ^ 1), bits),
        "another rate": pack_entry(replace(entry, rates=tuple(rate * 1.01 for rate in entry.rates)), bits),
        "another gradient": pack_entry(entry, bits ^ np.uint16(1)),
    }
    made.delete(key)
    if how in bodies:
        made.put(key, bodies[how])
    return made


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("gone", "There is no such object"),
        ("a flipped bit", "SHA-256"),
        ("another step's entry", "step 8"),
        ("another world's entry", "another world"),
        ("another model's entry", "another model"),
        ("another outcome", "not the one that was there before"),
        ("another rate", "not the one that was there before"),
        ("another gradient", "not the one that was there before"),
    ],
)
def test_what_cannot_be_used_is_refused_and_its_steps_are_computed_again(
    straight: Rank, past: FragileStore, how: str, problem: str
) -> None:
    store = damaged(past, how)
    rank = Rank(store, logging())
    expected = tuple(straight.losses[7:])
    again = Directive(7, Tier.RESUME, REF, replay=(LogSpan(1, 5, 7),), expected_losses=expected, exact=True)
    rank.answers = [again]
    assert rank.run(Directive(6, Tier.RESUME, REF, replay=(SPAN,))) == "done"
    ((generation, step, said),) = rank.refused
    assert (generation, step) == (6, 7)
    assert re.search(problem, said), said
    assert [row.step for row in rank.rows] == list(range(5, STEPS))
    assert root(store, 7) == root(past, 1)


def test_a_store_that_is_away_for_a_moment_costs_no_step_of_the_log(
    straight: Rank, past: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_replay, "_RETRY_S", 0.01)
    store, away = MemoryStore(), [StorageUnavailableError("503 SlowDown")]
    key = log_key(1, 7, 0)
    store.put(key, past.get(key))

    class Away(MemoryStore):
        def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            if away:
                raise away.pop()
            return store.get(key, start=start, end=end)

    log = log_replay._Log(Away(), rank=0, world_size=1, patience_s=30.0)
    assert log_replay._read_patiently(log, key)[0].step == 7
    assert away == []


def test_a_state_that_was_rounded_on_the_way_is_rounded_again(one_rank: object) -> None:
    """Rounding mode: the checkpoint of step 10 was due, but never committed, and the log leads past it."""
    checkpoint = {"every_steps": 5, "deadline_s": 30.0, "gradient_log": "store", "rounding": True}
    store = new_store()
    straight = Rank(store, logging(checkpoint=checkpoint))
    straight.run(Directive(1))
    rank = Rank(store, logging(checkpoint=checkpoint))
    rank.run(Directive(2, Tier.RESUME, REF, replay=(LogSpan(1, 5, 11),)))
    assert rank.refused == []
    assert root(store, 2) == root(store, 1)
