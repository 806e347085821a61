"""The ladder's memory on its way through the journal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.errors import InternalError
from stormsail.platform.messages import CheckpointRef, Tier
from stormsail.supervisor.ladder_state import Episode, LadderState, Restore, at_rest

counts = st.integers(-1, 10**6)
times = st.floats(0, 2e9)
refs = st.builds(CheckpointRef, generation=counts, step=counts)
episodes = st.builds(
    Episode,
    number=counts,
    tier=st.sampled_from(list(Tier)),
    opened_step=counts,
    opened_time_s=times,
    onset=counts,
    last_step=counts,
    restores=st.lists(st.builds(Restore, tier=st.sampled_from(list(Tier)), ref=st.none() | refs), max_size=3).map(
        tuple
    ),
    healthy_past=counts,
)
states = st.builds(
    LadderState,
    numeric=st.none() | episodes,
    infra=st.none() | episodes,
    episodes=counts,
    spent=counts,
    recent_s=st.lists(times, max_size=6).map(tuple),
    healthy_steps=counts,
    completed=counts,
    ever_completed=st.booleans(),
    user_error=st.none() | st.tuples(st.text(), counts),
    loaded=st.none() | refs,
    failures=st.lists(st.tuples(refs, counts), max_size=3).map(tuple),
    fp32_until=st.none() | counts,
    skip=st.lists(st.tuples(counts, counts), max_size=3).map(tuple),
)


@given(states)
def test_a_state_comes_back_from_json_as_it_was(state: LadderState) -> None:
    assert LadderState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_state_of_another_format_is_refused_with_a_remedy() -> None:
    with pytest.raises(InternalError, match="format 99") as caught:
        LadderState.from_json({**LadderState().to_json(), "format": 99})
    assert "version of Stormsail" in caught.value.todo


@pytest.mark.parametrize("change", [{"episodes": "three"}, {"recent_s": 5}, {"numeric": {"number": 1}}])
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InternalError, match="cannot be read"):
        LadderState.from_json({**LadderState().to_json(), **change})


def test_a_missing_field_is_named() -> None:
    data = LadderState().to_json()
    del data["spent"]
    with pytest.raises(InternalError, match="spent"):
        LadderState.from_json(data)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(InternalError, match="mood"):
        LadderState.from_json({**LadderState().to_json(), "mood": 1})


def test_at_rest_failures_are_forgotten() -> None:
    assert at_rest(LadderState(failures=((CheckpointRef(1, 2), 1),))).failures == ()
