"""What the driver keeps of a trial that the scheduler ended; Tune itself is run by tests/cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.quadratic import EDGE

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import InternalError
from stormsail.platform.storage.memory import MemoryStore
from stormsail.platform.storage.store import StoreAddress
from stormsail.tuning.bare_trial import BareTrial, run_bare
from stormsail.tuning.driver import Ends, keep_stopped, keeping, scheduler_of, still_left
from stormsail.tuning.objective import Measured
from stormsail.tuning.proxy import trial_config
from stormsail.tuning.records import SweepRecords
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell, Trial
from stormsail.tuning.stopping import rungs
from stormsail.tuning.trainable import Job, measured_text
from stormsail.workers.lean_imports import set_deterministic

Make = Callable[..., Measured]
GRACE = 40


class Tune:
    """Ray's own scheduler, asked as Tune asks it."""

    def __init__(self, sweep: SweepConfig) -> None:
        self.scheduler = scheduler_of(sweep, GRACE)
        self.scheduler.set_search_properties("score", "min")

    def ends(self, trial: str, percent: int, score: float) -> bool:
        """Whether a trial that reports this is ended."""
        one = SimpleNamespace(trial_id=trial)
        if percent == GRACE:
            self.scheduler.on_trial_add(None, one)
        said = self.scheduler.on_trial_result(None, one, {"percent": percent, "score": score})
        return bool(said == self.scheduler.STOP)


def test_the_last_report_of_a_trial_that_was_ended_is_its_result(make_measured: Make) -> None:
    records, one = SweepRecords(MemoryStore()), make_measured(diverged="it rose", final=None)
    records.put_checkpoint(one.trial.id, b"state")
    keep_stopped(records, one.trial.id, {"measured": measured_text(one)})
    assert records.trials() == {one.trial.id: one}
    assert records.checkpoint(one.trial.id) is None


def test_a_result_that_is_there_and_a_report_without_one_are_left_alone(make_measured: Make) -> None:
    records, one = SweepRecords(MemoryStore()), make_measured()
    keep_stopped(records, one.trial.id, {"percent": 40})
    assert records.trials() == {}
    records.put_trial(one)
    keep_stopped(records, one.trial.id, {"measured": measured_text(make_measured(diverged="it rose"))})
    assert records.trials() == {one.trial.id: one}


def test_a_trial_without_a_result_has_a_reason_though_its_process_never_came_up() -> None:
    """One that never reported has no config among Tune's results: taken from there, it was begun again for ever."""
    ended, noted = Ends(), list[str]()
    told = keeping(SweepRecords(MemoryStore()), noted.append, None, None, ended=ended, planned=4)

    def trial(name: str, error: Exception | None = None, **last: object) -> SimpleNamespace:
        return SimpleNamespace(
            config={"trial": name}, last_result=last, get_pickled_error=lambda: error, get_error=lambda: None
        )

    told.on_trial_complete(1, [], trial("done", percent=100))
    told.on_trial_complete(1, [], trial("slow", percent=100, fault="over its time limit of 1 s"))
    told.on_trial_error(1, [], trial("dead", RuntimeError("a trace\n\nthe worker died\n"), percent=40))
    told.on_trial_error(1, [], trial("unborn", RuntimeError("the actor died before it was made")))
    assert noted == ["done"]
    assert ended.errors == {
        "slow": "over its time limit of 1 s",
        "dead": "the worker died",
        "unborn": "the actor died before it was made",
    }
    assert ended.ids == {"done", *ended.errors}


def test_a_round_that_runs_nothing_is_the_last_one() -> None:
    jobs = [
        Job(Trial("w32", Cell(0.95, "1", 0.0), 0.01, seed), "", StoreAddress("file:///none"), "bare", (), 9, 9.0,
            gpu=False, home="", import_paths=())
        for seed in (1, 2)
    ]  # fmt: skip
    ended = Ends()
    ended.note(jobs[0].trial.id, RuntimeError("the actor never came up"), {})
    assert still_left(jobs, ended) == jobs[1:]
    ended.note(jobs[1].trial.id, None, {})
    assert still_left(jobs, ended) == []
    with pytest.raises(InternalError, match="without having run one of 2 trials"):
        still_left(jobs, Ends())


SCORES = st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6)), min_size=1, max_size=12)


@settings(max_examples=40)
@given(SCORES)
def test_asha_ends_nothing_that_is_stable_whatever_the_others_do(scores: list[tuple[float, float]]) -> None:
    tune = Tune(small_sweep())
    for number, (first, second) in enumerate(scores):
        if not tune.ends(str(number), GRACE, first):
            assert not tune.ends(str(number), 2 * GRACE, second) or second > 0.0
        else:
            assert first > 0.0


def small_sweep(**changes: object) -> SweepConfig:
    return SweepConfig.model_validate(
        {
            "name": "small",
            "target": "none",
            "parametrisation": "standard",
            "proxies": [{"name": "w32", "steps": 60}],
            **changes,
        }
    )


@pytest.fixture
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    set_deterministic(deterministic=False)
    torch.set_num_threads(threads)


class Ended(Exception):  # noqa: N818 - Tune's own way to leave a trial's function is an exception too
    pass


@pytest.mark.usefixtures("_settings_of_torch")
def test_asha_ends_bare_trials_that_diverge_after_the_grace_and_no_slow_one(bowl: RunConfig) -> None:
    sweep, tune = small_sweep(), Tune(small_sweep())
    ended: dict[float, int] = {}
    trials: dict[float, BareTrial] = {}

    def report(percent: int, score: float, trial: BareTrial) -> None:
        lr = trial.config.optimizer.lr
        trials[lr] = trial
        if tune.ends(str(lr), percent, score):
            ended[lr] = trial.step
            raise Ended

    rates = [EDGE * share for share in (0.001, 0.3, 0.6, 0.9, 1.05, 1.1, 1.15)]
    for lr in rates:
        config = trial_config(bowl, sweep, Trial("w32", Cell(0.95, "off", 0.0), lr, 1))
        try:
            run_bare(config, percentile=None, keeper=Nothing(), checkpoint_steps=99, rungs=rungs(GRACE), report=report)
        except Ended:
            continue
    stable = [lr for lr in rates if lr < EDGE]
    slow = trials[stable[0]].figures().final_loss or 0.0
    assert slow > max(trials[lr].figures().final_loss or 0.0 for lr in stable[1:])  # the worst of the stable ones
    assert ended
    assert all(lr > EDGE and 60 * GRACE // 100 <= step < 60 for lr, step in ended.items())
    assert all(trials[lr].step == 60 for lr in stable)
    assert all(trials[lr].figures().diverged for lr in ended)


def test_without_early_stopping_nothing_is_ended() -> None:
    for sweep in (small_sweep(search={"early_stop": "off"}), small_sweep(trials={"kind": "supervised"})):
        tune = Tune(sweep)
        assert not any(tune.ends(str(number), GRACE, 10.0 * number) for number in range(9))


class Nothing:
    """A keeper of no state."""

    def load(self) -> bytes | None:
        return None

    def save(self, body: bytes) -> None:
        del body
