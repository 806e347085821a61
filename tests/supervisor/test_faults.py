"""Finding the first cause of a failed attempt."""

from __future__ import annotations

from stormsail.platform.messages import FaultKind, WorkerFailure
from stormsail.supervisor.attempt_result import AttemptResult
from stormsail.supervisor.faults import describe


def failure(
    rank: int,
    origin: str,
    time_s: float,
    error: str = "RuntimeError: boom",
    *,
    exit_code: int = 1,
    step: int = 12,
) -> WorkerFailure:
    return WorkerFailure(1, rank, step, origin, error, "Traceback ...", exit_code, time_s)


def test_a_silent_death_is_the_cause_and_its_echoes_are_not() -> None:
    result = AttemptResult(ok=False, errors={0: "RuntimeError: connection closed", 1: "died"}, died=(1,))
    found = describe(result, [failure(0, "peer", 5.0, "RuntimeError: Connection closed by peer")], step=12, now_s=9.0)
    assert found.kind is FaultKind.PROCESS
    assert found.rank == 1
    assert "rank 1 died" in found.error


def test_user_code_wins_over_what_it_caused_even_if_heard_later() -> None:
    echoes = [failure(0, "peer", 4.0), failure(1, "user", 5.0, "ValueError: bad batch", exit_code=6)]
    found = describe(AttemptResult(ok=False, errors={}), echoes, step=12, now_s=9.0)
    assert found.kind is FaultKind.USER_CODE
    assert (found.rank, found.exit_code, found.error) == (1, 6, "ValueError: bad batch")


def test_of_two_user_errors_the_earlier_one_is_the_headline() -> None:
    both = [failure(0, "user", 8.0, "ValueError: second"), failure(1, "user", 7.0, "KeyError: first")]
    assert describe(AttemptResult(ok=False, errors={}), both, step=3, now_s=9.0).error == "KeyError: first"


def test_a_configuration_error_of_a_worker_is_certain_to_come_again() -> None:
    found = describe(
        AttemptResult(ok=False, errors={}),
        [failure(0, "ours", 1.0, "data: shard missing", exit_code=2, step=-1)],
        step=0,
        now_s=2.0,
    )
    assert found.kind is FaultKind.USER_CODE
    assert found.exit_code == 2


def test_the_signature_does_not_depend_on_addresses() -> None:
    texts = ("TypeError: <object at 0x7f00aa>", "TypeError: <object at 0x7f11bb>")
    signatures = {
        describe(AttemptResult(ok=False, errors={}), [failure(0, "user", 1.0, text)], step=3, now_s=2.0)
        .for_ladder()
        .signature
        for text in texts
    }
    assert len(signatures) == 1


def test_an_attempt_that_says_nothing_is_still_a_fault() -> None:
    found = describe(AttemptResult(ok=False, errors={}), [], step=3, now_s=2.0)
    assert found.kind is FaultKind.PROCESS
    assert "without a word" in found.error
