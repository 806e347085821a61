"""Run names and their incarnations: nothing is moved or lost by a fresh start, and of two at once one wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError, NoSuchRunError, PreconditionFailedError, StorageError
from stormsail.platform.runs import (
    RunPlace,
    begin_incarnation,
    find_run,
    list_runs,
    no_such_run,
    require_run,
    split_name,
    withdraw_incarnation,
)
from stormsail.platform.storage.open import open_store
from stormsail.platform.storage.store import StoreAddress


@pytest.fixture
def root(tmp_path: Path) -> StoreAddress:
    return StoreAddress(f"file://{tmp_path}/runs")


def test_a_name_that_was_never_used_is_no_run(root: StoreAddress) -> None:
    assert find_run(root, "run") is None


def test_the_first_incarnation_has_a_store_of_its_own(root: StoreAddress) -> None:
    place = begin_incarnation(root, "run")
    assert place == RunPlace("run", 1, root.child("run/1"))
    place.store().put("x", b"1")
    assert open_store(root).get("run/1/x") == b"1"
    assert find_run(root, "run") == place


def test_a_fresh_start_leaves_the_older_ones_within_reach(root: StoreAddress) -> None:
    first, second = begin_incarnation(root, "run"), begin_incarnation(root, "run")
    assert find_run(root, "run") == second
    assert find_run(root, "run@1") == first
    assert find_run(root, "run@3") is None


def test_one_that_never_started_is_withdrawn_unless_another_one_was_begun_since(root: StoreAddress) -> None:
    first, second = begin_incarnation(root, "run"), begin_incarnation(root, "run")
    withdraw_incarnation(root, second)
    assert find_run(root, "run") == first
    withdraw_incarnation(root, second)
    withdraw_incarnation(root, first)
    assert find_run(root, "run") == first


def test_a_turned_bit_never_leads_to_another_incarnation(root: StoreAddress) -> None:
    """Read as it stands, it would mostly lead to an empty one, and the run would begin anew without a word."""
    places = [begin_incarnation(root, "run") for _ in range(3)]
    store = open_store(root)
    whole = store.get("run/incarnation.json")
    for bit in range(0, 8 * len(whole), 17):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        store.put("run/incarnation.json", bytes(changed))
        assert find_run(root, "run") == places[-1]
    store.put("run/incarnation.json", whole.replace(b"3", b"12"))
    for use in (find_run, begin_incarnation):
        with pytest.raises(StorageError, match="which incarnation") as caught:
            use(root, "run")
        assert caught.value.where.endswith("run/incarnation.json")


def test_of_several_that_begin_at_once_each_gets_a_number_of_its_own_or_an_error(root: StoreAddress) -> None:
    def begin(_index: int) -> int | None:
        try:
            return begin_incarnation(root, "run").incarnation
        except PreconditionFailedError:
            return None

    with ThreadPoolExecutor(4) as pool:
        numbers = [number for number in pool.map(begin, range(8)) if number is not None]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_runs_are_listed_by_name_and_what_they_store_is_not(root: StoreAddress) -> None:
    for name in ("b", "a", "b"):
        begin_incarnation(root, name)
    require_run(root, "a").store().put("journal/00000001.json", b"{}")
    assert list_runs(open_store(root)) == ["a", "b"]


def test_a_misspelt_name_is_answered_with_the_nearest(root: StoreAddress) -> None:
    begin_incarnation(root, "quickstart")
    with pytest.raises(NoSuchRunError, match="did you mean 'quickstart'"):
        require_run(root, "quikstart")


def test_a_name_like_no_other_is_answered_with_what_there_is(root: StoreAddress) -> None:
    begin_incarnation(root, "quickstart")
    assert "runs here: quickstart" in str(no_such_run(open_store(root), "zzz"))


def test_an_empty_store_says_so(root: StoreAddress) -> None:
    assert "there are no runs here" in str(no_such_run(open_store(root), "run"))


@pytest.mark.parametrize("spoken", ["", "Run", "-run", "run@0", "run@", "run@x", "a/b", "../x", "a" * 64])
def test_what_can_be_no_name_is_refused(root: StoreAddress, spoken: str) -> None:
    with pytest.raises(ConfigError, match="is not a run name"):
        find_run(root, spoken)


@pytest.mark.parametrize(
    ("spoken", "parts"), [("run", ("run", None)), ("run@12", ("run", 12)), ("a.b_c-1", ("a.b_c-1", None))]
)
def test_a_name_may_carry_the_number_of_its_incarnation(spoken: str, parts: tuple[str, int | None]) -> None:
    assert split_name(spoken) == parts


def test_a_store_that_fails_is_never_taken_for_no_run() -> None:
    gone = StoreAddress("s3://bucket/x", endpoint="http://127.0.0.1:9", region="us-east-1", timeout_s=0.2)
    with pytest.raises(StorageError):
        find_run(gone, "run")
