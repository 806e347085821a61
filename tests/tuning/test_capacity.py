"""How many trials at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormsail.platform.errors import ClusterError
from stormsail.tuning.capacity import concurrency, eta_s, fits_on, worth_a_new_start

AMOUNTS = st.fixed_dictionaries({"CPU": st.floats(0.0, 99), "GPU": st.floats(0.0, 9)})
NEEDS = st.fixed_dictionaries({"CPU": st.floats(0.1, 9)}, optional={"GPU": st.floats(0.1, 2)})


@settings(max_examples=40)
@given(st.lists(AMOUNTS, min_size=1, max_size=4), AMOUNTS, NEEDS, st.none() | st.integers(1, 99), st.integers(1, 999))
def test_trials_take_what_is_free_and_one_always_waits_for_its_turn(
    nodes: list[dict[str, float]], free: dict[str, float], per_trial: dict[str, float], wanted: int | None, trials: int
) -> None:
    most = fits_on(nodes, per_trial)
    if most < 1:
        with pytest.raises(ClusterError, match=r"one trial needs .* CPU"):
            concurrency(nodes=nodes, free=free, per_trial=per_trial, wanted=wanted, trials=trials)
        return
    count = concurrency(nodes=nodes, free=free, per_trial=per_trial, wanted=wanted, trials=trials)
    assert 1 <= count <= min(trials, wanted or trials, most)
    assert count == 1 or all(count * amount <= free[name] + 1e-6 for name, amount in per_trial.items())
    if 1 < count < min(trials, wanted or trials, most):  # one more would be too many
        assert any((count + 1) * amount > free[name] - 1e-6 for name, amount in per_trial.items())


def test_a_cluster_that_is_full_or_without_gpus_is_told_apart() -> None:
    assert concurrency(nodes=[{"CPU": 4.0}], free={}, per_trial={"CPU": 1.0}, wanted=None, trials=9) == 1
    with pytest.raises(ClusterError, match=r"one trial needs 1 CPU, 1 GPU, but no node .*: 4 CPU, 0 GPU\)"):
        concurrency(nodes=[{"CPU": 4.0}], free={}, per_trial={"CPU": 1.0, "GPU": 1.0}, wanted=None, trials=9)


def test_a_trial_fits_on_one_node_or_not_at_all() -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 1.0, "GPU": 8.0}]
    assert concurrency(nodes=nodes, free={"CPU": 7.0}, per_trial={"CPU": 2.0}, wanted=None, trials=9) == 2
    with pytest.raises(ClusterError, match="no node of the cluster has that"):
        concurrency(nodes=nodes, free={"CPU": 7.0}, per_trial={"CPU": 4.0}, wanted=None, trials=9)


def test_a_batch_begins_anew_only_for_much_more_room_and_many_trials() -> None:
    assert worth_a_new_start(now=2, limit=1, left=4)
    assert not worth_a_new_start(now=2, limit=1, left=3)
    assert not worth_a_new_start(now=100, limit=99, left=9999)
    assert not worth_a_new_start(now=1, limit=2, left=9999)


def test_the_rest_is_taken_to_go_like_what_was_done() -> None:
    assert eta_s(done=4, total=10, spent_s=8.0) == 12.0
    assert eta_s(done=0, total=10, spent_s=8.0) is None
