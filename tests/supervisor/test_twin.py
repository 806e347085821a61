"""The twin that proves a drill: which run it is, and which digests are compared."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.run_kit import Staff, small_config

from stormsail.platform.journal import Journal
from stormsail.platform.runs import RunPlace
from stormsail.supervisor.twin import digest_at, twin_of

Played = Callable[[Callable[[Staff], None]], RunPlace]


def test_a_twin_is_the_same_run_without_faults_and_evaluations_under_another_name() -> None:
    drill = {"twin_step": 20, "faults": [{"kind": "kill", "step": 5}]}
    config = small_config(drill=drill, eval={"every_steps": 10}, checkpoint={"keep_best": True})
    twin = twin_of(config)
    assert twin.name == "run-twin"
    assert twin.drill == small_config().drill
    assert twin.model_copy(update={"name": config.name, "drill": config.drill}) == config.unevaluated()


def test_the_digest_at_a_step_is_that_of_its_first_checkpoint(played: Played) -> None:
    def twice(staff: Staff) -> None:
        for digest in ("first", "again"):
            staff.ledger.note("checkpoint.committed", step=10, generation=1, digest=digest, finite=True)

    events = Journal.read(played(twice).store())
    assert digest_at(events, 10) == "first"
    assert digest_at(events, 11) is None
