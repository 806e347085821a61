"""Forming the world."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.messages import JoinRequest, World
from stormsail.supervisor.membership import Membership, assign_ranks


def request(worker_rank: int, node: str = "10.0.0.1", attempt: int = 1) -> JoinRequest:
    return JoinRequest(attempt, worker_rank, node, f"host-{node}", 100 + worker_rank, "cpu", "data")


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12))
def test_ranks_are_dense_and_each_node_holds_neighbours(nodes: list[str]) -> None:
    ranks = assign_ranks([request(index, node) for index, node in enumerate(nodes)])
    assert sorted(ranks.values()) == list(range(len(nodes)))
    by_rank = [nodes[worker] for worker, _ in sorted(ranks.items(), key=lambda item: item[1])]
    changes = sum(a != b for a, b in itertools.pairwise(by_rank))
    assert changes == len(set(nodes)) - 1


def test_on_one_node_the_order_of_ray_is_kept() -> None:
    assert assign_ranks([request(1), request(0), request(2)]) == {0: 0, 1: 1, 2: 2}


def place(membership: Membership, worker_rank: int) -> World:
    world = membership.world_of(1, worker_rank, wait_s=0.0)
    assert world is not None
    return world


@pytest.fixture
def membership() -> Membership:
    made = Membership(host="127.0.0.1", timeout_s=5.0)
    made.expect(attempt=1, generation=4, workers=2)
    return made


def test_the_world_is_formed_when_the_last_worker_has_joined(membership: Membership) -> None:
    assert not membership.join(request(0))
    assert membership.world_of(1, 0, wait_s=0.0) is None
    assert membership.join(request(1))
    first, second = place(membership, 0), place(membership, 1)
    assert (first.rank, second.rank, first.world_size, first.generation) == (0, 1, 2, 4)
    assert first.store_port == second.store_port


def test_a_worker_of_an_older_attempt_gets_no_place(membership: Membership) -> None:
    membership.expect(attempt=2, generation=5, workers=1)
    assert not membership.join(request(0, attempt=1))
    assert membership.world_of(1, 0, wait_s=0.0) is None


def test_joining_twice_forms_one_world(membership: Membership) -> None:
    membership.join(request(0))
    membership.join(request(1))
    port = place(membership, 0).store_port
    assert not membership.join(request(1))
    assert place(membership, 0).store_port == port
