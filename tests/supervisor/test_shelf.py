"""The shelf: every checkpoint, on which line it lies, and whether every byte of it is what was written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.differences import tiny_keyframe
from tests.support.run_kit import Staff, checkpoint_meta, log_steps

from stormsail.platform.checkpoint.commits import scan_commits
from stormsail.platform.checkpoint.keys import commit_key
from stormsail.platform.checkpoint.shards import Shard, ShardSpec
from stormsail.platform.checkpoint.writer import commit, write_part
from stormsail.platform.errors import CheckpointError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.shelf import find_ref, list_shelf, render_shelf


def test_checkpoints_are_listed_oldest_step_first_with_their_line(past: RunPlace) -> None:
    rows = [(row["generation"], row["step"], row["state"], row["good"]) for row in list_shelf(past)]
    assert rows == [
        (1, 10, "live", True),
        (1, 20, "live", True),
        (1, 23, "superseded", False),
        (2, 30, "live", False),
    ]


def test_the_digest_is_the_one_that_was_committed(past: RunPlace) -> None:
    digests = {commit.step: commit.root for commit in scan_commits(past.store()).commits}
    assert {row["step"]: row["digest"] for row in list_shelf(past)} == digests


def test_one_that_failed_a_restore_is_shown_as_damaged(played: Callable[[Callable[[Staff], None]], RunPlace]) -> None:
    def damage(staff: Staff) -> None:
        staff.checkpoint(10)
        staff.ledger.note("checkpoint.corrupt", step=10, generation=1, problem="torn")

    assert list_shelf(played(damage))[0]["state"] == "damaged"


def test_a_commit_that_cannot_be_read_is_shown_and_hides_no_other(past: RunPlace) -> None:
    past.store().put(commit_key(CheckpointRef(1, 10)), b"not a commit")
    rows = list_shelf(past)
    assert [row["state"] for row in rows] == ["live", "superseded", "live", "unreadable"]
    assert "unreadable" in render_shelf(rows)


def test_the_table_has_a_line_for_each(past: RunPlace) -> None:
    lines = render_shelf(list_shelf(past)).splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:3] == ["1/10", "live", "good"]


def test_what_was_evaluated_shows_its_loss_and_which_one_is_best(
    played: Callable[[Callable[[Staff], None]], RunPlace],
) -> None:
    def evaluated(staff: Staff) -> None:
        for step, loss in ((10, 2.0), (20, 1.5), (30, None), (40, 1.75)):
            staff.checkpoint(step, good=step != 40, eval_loss=loss)

    place = played(evaluated)
    rows = list_shelf(place)
    assert [(row["eval_loss"], row["best"]) for row in rows] == [
        (2.0, False),
        (1.5, True),
        (None, False),
        (1.75, False),
    ]
    assert find_ref(place, "best") == CheckpointRef(1, 20)
    head, *lines = render_shelf(rows).splitlines()
    column = head.index("eval loss")
    assert [line[column:].split("  ")[0].strip() for line in lines] == [
        "2.0000",
        "1.5000 best",
        "-",
        "1.7500",
    ]


def test_what_was_lower_over_other_samples_is_not_the_best_one(
    played: Callable[[Callable[[Staff], None]], RunPlace],
) -> None:
    def evaluated(staff: Staff) -> None:
        for step, loss, eval_set in ((10, 1.0, "a"), (20, 1.9, "b"), (30, 2.0, "b")):
            staff.checkpoint(step, good=True, eval_loss=loss, eval_set=eval_set)

    place = played(evaluated)
    assert [(row["eval_set"][0], row["best"]) for row in list_shelf(place)] == [("a", False), ("b", True), ("b", False)]
    assert find_ref(place, "best") == CheckpointRef(1, 20)


def test_what_is_not_judged_yet_may_be_the_best_one(played: Callable[[Callable[[Staff], None]], RunPlace]) -> None:
    """The last ones of a run that is over never are."""

    def evaluated(staff: Staff) -> None:
        for step, loss in ((10, 2.0), (20, 1.5), (30, 1.0)):
            staff.checkpoint(step, good=step == 10, eval_loss=loss)
        staff.ledger.note("checkpoint.corrupt", step=30, generation=1, problem="torn")

    place = played(evaluated)
    assert find_ref(place, "best") == CheckpointRef(1, 20)


def test_a_run_that_was_never_evaluated_has_no_best_one(past: RunPlace) -> None:
    with pytest.raises(CheckpointError, match="there is no best checkpoint: no saved state was evaluated"):
        find_ref(past, "best")


def test_a_run_that_was_never_evaluated_has_no_such_column(past: RunPlace) -> None:
    assert "eval" not in render_shelf(list_shelf(past))


def test_an_empty_shelf_says_so() -> None:
    assert render_shelf([]) == "no checkpoints"


def test_what_builds_on_a_keyframe_shows_it_and_what_that_saved(
    played: Callable[[Callable[[Staff], None]], RunPlace],
) -> None:
    def build(staff: Staff) -> None:
        store = staff.store
        shards = [
            Shard(ShardSpec("w", component, (20_000,), 0, 20_000), np.arange(20_000, dtype=np.float32))
            for component in ("exp_avg", "exp_avg_sq", "master")
        ]
        base = None
        for step in (10, 20):
            part = write_part(
                store,
                generation=1,
                step=step,
                rank=0,
                world_size=1,
                shards=shards,
                cancelled=lambda: False,
                base=base,
            )
            commit(store, [part], checkpoint_meta(step), parent=None, time_s=1.0)
            base = tiny_keyframe(part, shards) if base is None else base

    place = played(build)
    rows = list_shelf(place)
    assert [row["base"] for row in rows] == [None, [1, 10]]
    assert rows[1]["saved_bytes"] == rows[0]["bytes"] - rows[1]["bytes"] > 0
    lines = render_shelf(rows).splitlines()
    assert lines[2].split()[4] == "1/10"
    assert lines[2].split()[5].startswith("-")


def test_the_step_that_the_gradient_log_leads_to_is_shown(past: RunPlace) -> None:
    assert "gradient log" not in render_shelf(list_shelf(past))
    log_steps(past.store(), 2, 30, 34, ranks=1)
    assert [row["log_to"] for row in list_shelf(past)] == [None, None, None, 34]
    assert render_shelf(list_shelf(past)).endswith("the gradient log leads from step 30 to step 34")
