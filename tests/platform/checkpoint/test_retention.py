"""Retention deletes what nobody may need any more, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.platform.checkpoint.evaluated import Evaluated
from stormsail.platform.checkpoint.retention import Keep, RetentionPlan, retain, standing, to_fold
from stormsail.platform.errors import ConfigError
from stormsail.platform.messages import CheckpointRef


def steps(*numbers: int, generation: int = 1) -> list[CheckpointRef]:
    return [CheckpointRef(generation, number) for number in numbers]


def plan(
    commits: list[CheckpointRef],
    *,
    good: Collection[CheckpointRef] | None = None,
    live: Collection[CheckpointRef] | None = None,
    head: int | None = None,
    keep_last: int = 1,
    every_steps: int | None = None,
    every_s: float | None = None,
    times: Mapping[CheckpointRef, float] | None = None,
    evaluated: Collection[Evaluated] | None = None,
    pinned: Collection[CheckpointRef] = (),
    held: Collection[CheckpointRef] = (),
    bases: Mapping[CheckpointRef, CheckpointRef] | None = None,
) -> RetentionPlan:
    return retain(
        commits,
        good=commits if good is None else good,
        live=commits if live is None else live,
        head_step=max(ref.step for ref in commits) if head is None else head,
        rules=Keep(keep_last, every_steps, every_s, best=evaluated is not None),
        times=times,
        evaluated=evaluated or (),
        pinned=pinned,
        held=held,
        bases=bases,
    )


def test_steps_are_compared_as_numbers() -> None:
    """900, 1000 and 1100 with two to keep: 900 goes, although its name is the greatest as text."""
    made = plan(steps(900, 1000, 1100), keep_last=2)
    assert made.keep == tuple(steps(1000, 1100))
    assert made.delete == tuple(steps(900))


def test_the_newest_good_and_the_one_before_it_stay_even_if_one_is_asked_for() -> None:
    assert plan(steps(0, 100, 190, 200), head=200).keep == tuple(steps(100, 190, 200))


def test_one_good_checkpoint_stays_far_enough_back_for_the_ladder() -> None:
    made = plan(steps(*range(0, 310, 10)), keep_last=3)
    assert made.keep == tuple(steps(200, 230, 250, 280, 290, 300))


def test_the_oldest_stays_where_none_is_far_enough_back() -> None:
    assert plan(steps(*range(10, 100, 10)), keep_last=2).keep == tuple(steps(10, 30, 50, 80, 90))


def test_what_is_not_judged_yet_stays() -> None:
    made = plan(steps(*range(100, 310, 10)), good=steps(100, 150, 260), head=305)
    assert made.keep == tuple(steps(150, 260, 270, 280, 290, 300))


def test_where_nothing_is_good_everything_live_stays() -> None:
    assert plan(steps(10, 20, 30), good=[]).delete == ()


def test_old_ones_that_never_became_good_go() -> None:
    made = plan(steps(100, 110, 120, 130), good=steps(100, 110, 130))
    assert made.delete == tuple(steps(120))


def test_superseded_ones_stay_only_of_the_newest_superseded_generation() -> None:
    first, second, third = steps(410, 500), steps(420, 430, generation=2), steps(400, generation=3)
    made = plan([*first, *second, *third], live=third)
    assert set(made.keep) == {*second, *third}
    assert made.delete == tuple(first)


def test_a_superseded_good_one_does_not_stand_in_for_a_live_one() -> None:
    live, off = steps(100, 200, 300), steps(900, 1000, generation=1)
    made = plan([*live, *off], live=live, head=310)
    assert set(live[-2:]) <= set(made.keep)


def test_pinned_ones_stay_on_any_line() -> None:
    old, off = steps(1), steps(5, generation=0)
    made = plan([*steps(1, 200, 300, 400), *off], live=steps(1, 200, 300, 400), pinned=[*old, *off])
    assert {*old, *off} <= set(made.keep)


def test_keeping_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep at least 1"):
        plan(steps(1), keep_last=0)


REF = st.builds(CheckpointRef, st.integers(1, 4), st.integers(0, 400))
REFS = st.lists(REF, min_size=1, max_size=30, unique=True)


@given(REFS, st.data())
def test_what_the_ladder_may_need_is_never_deleted(commits: list[CheckpointRef], data: st.DataObject) -> None:
    good = data.draw(st.sets(st.sampled_from(commits)))
    live = data.draw(st.sets(st.sampled_from(commits)))
    head = data.draw(st.integers(0, 500))
    keep_last = data.draw(st.integers(1, 5))
    made = plan(commits, good=good, live=live, head=head, keep_last=keep_last)
    assert set(made.keep) | set(made.delete) == set(commits)
    assert not set(made.keep) & set(made.delete)
    judged = sorted(good & live, key=lambda ref: (ref.step, ref.generation))
    needed = set(judged[-max(2, keep_last) :])
    needed |= set([ref for ref in judged if ref.step <= head - 100][-1:] or judged[:1])
    if live:
        needed.add(max(live, key=lambda ref: (ref.step, ref.generation)))
    assert needed <= set(made.keep)


@given(REFS, st.data())
def test_a_second_look_deletes_nothing_more(commits: list[CheckpointRef], data: st.DataObject) -> None:
    good = data.draw(st.sets(st.sampled_from(commits)))
    live = data.draw(st.sets(st.sampled_from(commits)))
    head = data.draw(st.integers(0, 500))
    first = plan(commits, good=good, live=live, head=head)
    if first.keep:
        again = plan(list(first.keep), good=good, live=live, head=head)
        assert again == RetentionPlan(first.keep, ())


@given(st.integers(1, 20), st.integers(1, 4), st.integers(2, 80))
def test_a_run_that_goes_on_always_has_one_far_enough_back(every: int, keep_last: int, saves: int) -> None:
    held: list[CheckpointRef] = []
    for number in range(1, saves):
        head = number * every
        held.append(CheckpointRef(1, head))
        good = [ref for ref in held if ref.step <= head - 20]
        held = list(plan(held, good=good, head=head, keep_last=keep_last).keep)
        if head >= 100 + 20 + every:
            far = [ref.step for ref in held if ref.step <= head - 100]
            assert far
            assert max(far) > head - 100 - 2 * max(25, every), (
                "the ladder would have to go back much farther than it asks"
            )
        assert len(held) <= 3 + keep_last + 20 // every + 1 + 5


def test_a_keyframe_stays_as_long_as_something_kept_builds_on_it() -> None:
    commits = steps(*range(100, 260, 10))
    bases = {ref: CheckpointRef(1, 100) for ref in commits if ref.step > 100}
    made = plan(commits, head=260, bases=bases)
    assert CheckpointRef(1, 100) in made.keep
    assert CheckpointRef(1, 100) not in plan(commits, head=260).keep


def test_what_builds_on_another_is_deleted_before_it() -> None:
    commits = steps(10, 20, 30, 200, 300, 400)
    bases = {CheckpointRef(1, 20): CheckpointRef(1, 10), CheckpointRef(1, 30): CheckpointRef(1, 10)}
    assert plan(commits).delete == tuple(steps(10, 20, 30, 200))
    assert plan(commits, bases=bases).delete == tuple(steps(20, 30, 10, 200))


@given(REFS, st.data())
def test_nothing_that_is_kept_loses_its_keyframe(commits: list[CheckpointRef], data: st.DataObject) -> None:
    good = data.draw(st.sets(st.sampled_from(commits)))
    live = data.draw(st.sets(st.sampled_from(commits)))
    head = data.draw(st.integers(0, 500))
    ordered = sorted(commits, key=lambda ref: (ref.step, ref.generation))
    keyframes = [ref for index, ref in enumerate(ordered) if index == 0 or data.draw(st.booleans())]
    bases = {
        ref: max((key for key in keyframes if key.step < ref.step), key=lambda key: key.step)
        for ref in ordered
        if ref not in keyframes and any(key.step < ref.step for key in keyframes)
    }
    made = plan(commits, good=good, live=live, head=head, bases=bases)
    assert all(bases[ref] in made.keep for ref in made.keep if ref in bases)
    assert set(plan(commits, good=good, live=live, head=head).keep) <= set(made.keep)
    left = set(commits)
    for ref in made.delete:
        left.remove(ref)
        assert all(bases[other] in left for other in left if other in bases), "dying here would leave an orphan"


def test_one_of_each_stretch_of_steps_stays_for_ever() -> None:
    made = plan(steps(*range(0, 1010, 10)), every_steps=300)
    assert made.lasting == tuple(steps(0, 300, 600, 900))
    assert set(made.lasting) < set(made.keep)


def test_one_of_each_stretch_of_time_stays_for_ever_also_where_the_clock_jumps_back() -> None:
    refs = steps(*range(0, 100, 10))
    times = dict(zip(refs, (0, 9, 11, 25, 12, 31, 32, 33, 34, 45), strict=True))
    assert plan(refs, every_s=10, times=times).lasting == tuple(steps(0, 20, 30, 50, 90))


def test_a_checkpoint_that_is_not_known_good_is_none_of_a_stretch() -> None:
    refs = steps(*range(0, 100, 10))
    assert plan(refs, good=refs[2:], every_steps=50).lasting == tuple(steps(20, 50))


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40, unique=True), st.integers(1, 200))
def test_what_stays_for_ever_stays_as_the_run_goes_on(numbers: list[int], every: int) -> None:
    held: list[CheckpointRef] = []
    lasting: set[CheckpointRef] = set()
    for number in sorted(numbers):
        held = list(plan([*held, *steps(number)], every_steps=every).keep)
        assert lasting <= set(held)
        lasting = set(plan(held, every_steps=every).lasting)


def test_what_is_pinned_lasts_and_what_is_held_only_stays() -> None:
    refs = steps(*range(0, 310, 10))
    made = plan(refs, pinned=steps(10), held=steps(20))
    assert made.lasting == tuple(steps(10))
    assert {*steps(10), *steps(20)} < set(made.keep)


def test_what_lasts_is_folded_once_the_run_builds_on_another_keyframe() -> None:
    bases = dict.fromkeys(steps(10, 20, 30), steps(0)[0]) | dict.fromkeys(steps(50, 60), steps(40)[0])
    made = RetentionPlan(tuple(steps(0, 10, 20, 40, 50, 60)), (), tuple(steps(0, 10, 20, 50)))
    assert to_fold(made, bases, ()) == tuple(steps(10, 20))
    assert to_fold(made, bases, steps(10)) == tuple(steps(20))


def test_a_keyframe_may_go_once_what_builds_on_it_was_folded() -> None:
    refs = steps(*range(0, 310, 10))
    needs = {steps(20)[0]: steps(0)[0]}
    assert steps(0)[0] in plan(refs, pinned=steps(20), bases=needs).keep
    assert steps(0)[0] in plan(refs, pinned=steps(20)).delete


def evaluated(numbers: Mapping[int, float], generation: int = 1, eval_set: str = "a") -> list[Evaluated]:
    return [Evaluated(generation, step, loss, eval_set) for step, loss in numbers.items()]


def test_the_one_with_the_lowest_evaluation_loss_stays_and_of_equal_ones_the_older() -> None:
    refs = steps(*range(0, 1010, 10))
    losses = evaluated({100: 3.0, 200: 1.5, 300: 1.5, 400: 2.0, 1000: 2.5})
    assert set(plan(refs, evaluated=losses).keep) - set(plan(refs).keep) == set(steps(200))
    assert plan(refs, evaluated=()) == plan(refs)


def test_the_best_one_is_known_good_and_on_the_live_line() -> None:
    refs, off = steps(*range(0, 1010, 10)), steps(400, generation=2)
    good, losses = set(refs) - set(steps(200)), [*evaluated({200: 1.0, 300: 2.0}), *evaluated({400: 0.5}, 2)]
    newer = steps(1000, generation=3)  # the newest superseded generation, which stays as a grace
    commits = [*refs, *off, *newer]
    made = plan(commits, good=[*good, *off], live=refs, head=1000, evaluated=losses)
    assert steps(300)[0] in made.keep
    assert {*steps(200), *off} <= set(made.delete)


def test_what_was_lower_over_other_samples_is_kept_until_one_over_those_of_now_is_good() -> None:
    refs = steps(*range(0, 1010, 10))
    losses = [*evaluated({200: 1.0, 300: 1.5}), *evaluated({400: 3.0, 500: 2.0}, eval_set="b")]
    assert steps(200)[0] in plan(refs, good=steps(*range(0, 400, 10)), head=1000, evaluated=losses).keep
    made = plan(refs, head=1000, evaluated=losses)
    assert steps(500)[0] in made.keep
    assert steps(200)[0] in made.delete


def test_the_best_one_keeps_its_keyframe_and_does_not_last() -> None:
    refs = steps(*range(0, 1010, 10))
    bases = {steps(200)[0]: steps(150)[0]}
    made = plan(refs, evaluated=evaluated({200: 1.0}), bases=bases)
    assert {*steps(200), *steps(150)} <= set(made.keep)
    assert made.lasting == ()
    assert to_fold(made, bases, ()) == ()


@given(st.lists(st.tuples(st.booleans(), st.none() | st.sampled_from([1.0, 2.0, 3.0, math.nan])), max_size=40))
def test_the_best_one_is_there_as_the_run_goes_on(saves: list[tuple[bool, float | None]]) -> None:
    held: list[CheckpointRef] = []
    good: set[CheckpointRef] = set()
    losses: list[Evaluated] = []
    for number, (is_good, loss) in enumerate(saves):
        ref = CheckpointRef(1, 10 * number)
        good |= {ref} if is_good else set()
        losses += [] if loss is None else evaluated({ref.step: loss})
        held = list(plan([*held, ref], good=good, evaluated=losses).keep)
        able = [(item.loss, item.step) for item in losses if item.ref in good and math.isfinite(item.loss)]
        assert not able or CheckpointRef(1, min(able)[1]) in held


def test_those_that_stand_are_good_or_not_judged_yet() -> None:
    live = steps(10, 20, 30, 40, 50)
    assert standing(live, steps(10, 30)) == tuple(steps(50, 40, 30, 10))
    assert standing(live, ()) == tuple(reversed(live))
    assert standing((), steps(10)) == ()
