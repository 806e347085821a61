"""How many trials at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import ClusterError
from stormsail.tuning.capacity import concurrency, eta_s


@given(st.floats(0.1, 999), st.floats(0.1, 99), st.none() | st.integers(1, 99), st.integers(1, 999))
def test_trials_never_need_more_than_there_is(cpus: float, per_trial: float, wanted: int | None, trials: int) -> None:
    if cpus < per_trial * 0.999:
        with pytest.raises(ClusterError, match="one trial needs"):
            concurrency(cpus=cpus, per_trial=per_trial, wanted=wanted, trials=trials)
    elif cpus >= per_trial:
        count = concurrency(cpus=cpus, per_trial=per_trial, wanted=wanted, trials=trials)
        assert 1 <= count <= min(trials, wanted or trials)
        assert count * per_trial <= cpus * (1 + 1e-6)


def test_the_rest_is_taken_to_go_like_what_was_done() -> None:
    assert eta_s(done=4, total=10, spent_s=8.0) == 12.0
    assert eta_s(done=0, total=10, spent_s=8.0) is None
