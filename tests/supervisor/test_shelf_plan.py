"""What retention would do is told, and not done."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.run_kit import Staff

from stormsail.platform.checkpoint.commits import load_commit, scan_commits
from stormsail.platform.checkpoint.folding import drop_original, fold
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.shelf_plan import plan_shelf, render_plan


def test_every_checkpoint_has_its_verdict_and_nothing_is_deleted(past: RunPlace) -> None:
    rows = [(row["step"], row["keep"], row["live"], row["good"]) for row in plan_shelf(past)]
    assert rows == [(10, True, True, True), (20, True, True, True), (23, True, False, False), (30, True, True, False)]
    assert len(scan_commits(past.store()).commits) == 4


def test_a_keyframe_is_needed_until_the_differences_of_what_was_folded_are_gone(
    played: Callable[[Callable[[Staff], None]], RunPlace],
) -> None:
    ref = CheckpointRef(1, 2)

    def folding(staff: Staff) -> None:
        staff.checkpoint(ref.step, good=True, base=staff.keyframe(1))
        fold(staff.store, ref, time_s=1.0)

    place = played(folding)
    assert [(row["step"], row["needed"]) for row in plan_shelf(place)] == [(1, True), (2, False)]
    drop_original(place.store(), load_commit(place.store(), ref))
    assert [(row["step"], row["needed"]) for row in plan_shelf(place)] == [(1, False), (2, False)]


def test_the_best_evaluated_one_is_planned_as_the_run_itself_plans_it(
    played: Callable[[Callable[[Staff], None]], RunPlace],
) -> None:
    def evaluated(staff: Staff) -> None:
        for step, loss in ((10, 2.0), (20, 1.5), (30, None), (40, 1.8)):
            staff.checkpoint(step, good=step != 40, eval_loss=loss)

    rows = plan_shelf(played(evaluated))
    assert [row["best"] for row in rows] == [False, True, False, False]
    assert "1/20         keep  , live, good, best of the good ones, " in render_plan(rows)


def test_what_would_go_is_summed_up() -> None:
    row = {
        "generation": 1,
        "live": True,
        "good": True,
        "needed": False,
        "pinned": False,
        "best": False,
        "bytes": 2_000_000,
    }
    text = render_plan(
        [{**row, "step": 10, "keep": False}, {**row, "step": 20, "keep": True, "needed": True, "pinned": True}]
    )
    assert text.splitlines() == [
        "1/10         delete, live, good, 2.0 MB",
        "1/20         keep  , live, good, pinned, others build on it, 2.0 MB",
        "1 of 2 would go, 2.0 MB; nothing was deleted",
    ]


def test_a_run_without_checkpoints_says_so(played: Callable[[Callable[[Staff], None]], RunPlace]) -> None:
    assert render_plan(plan_shelf(played(lambda staff: staff.steps(0, 2)))) == "no checkpoints"
