"""Following a run: each event once, through absences of the supervisor, on terminals and in files."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import GetTimeoutError
from tests.support.run_kit import small_config, step_row

from stormsail.platform.errors import ClusterError
from stormsail.platform.journal_events import Event
from stormsail.platform.messages import StepRow
from stormsail.supervisor import follow as module
from stormsail.supervisor.follow import RayLooker, Screen, follow
from stormsail.supervisor.host.identity import ProcessIdentity
from stormsail.supervisor.host.info import HostInfo
from stormsail.supervisor.ledger import Snapshot
from stormsail.supervisor.phases import RunPhase
from stormsail.supervisor.watch.waiting import Wait


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Script:
    """A supervisor that gives these answers; an exception is raised."""

    def __init__(self, answers: Sequence[Snapshot | Exception]) -> None:
        self._answers = iter(answers)
        self.cursors: list[tuple[int, int]] = []

    def look(self, cursor: tuple[int, int]) -> Snapshot:
        self.cursors.append(cursor)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def snapshot(
    *,
    events: Sequence[Event] = (),
    rows: Sequence[StepRow] = (),
    cursor: tuple[int, int] = (0, 0),
    phase: RunPhase = RunPhase.RUNNING,
    over: bool = False,
    error: ClusterError | None = None,
) -> Snapshot:
    return Snapshot(tuple(events), tuple(rows), cursor, 0, phase, over, error)


def happened(kind: str, **data: object) -> Event:
    return Event(1, 1000.0, kind, 1, 7, 1, {**data})  # type: ignore[dict-item] # JSON values


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)


def screen(out: io.StringIO, **more: str) -> Screen:
    return Screen(small_config(), out=out, **more)


def test_it_follows_from_cursor_to_cursor_until_the_end(out: io.StringIO) -> None:
    script = Script([snapshot(cursor=(3, 1)), snapshot(cursor=(5, 2)), snapshot(cursor=(5, 2), over=True)])
    assert follow(script, screen(out)) is None
    assert script.cursors == [(0, 0), (3, 1), (5, 2)]


def test_why_the_supervisor_gave_up_is_handed_on(out: io.StringIO) -> None:
    error = ClusterError("no room")
    assert follow(Script([snapshot(over=True, error=error)]), screen(out)) is error


def test_a_supervisor_that_is_being_restarted_is_waited_for(out: io.StringIO) -> None:
    away = ConnectionError("away")
    script = Script([snapshot(cursor=(3, 1)), away, away, snapshot(over=True)])
    assert follow(script, screen(out)) is None
    assert script.cursors == [(0, 0), (3, 1), (3, 1), (3, 1)]


def test_one_that_stays_away_is_given_up(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AWAY_LIMIT_S", -1.0)
    with pytest.raises(ConnectionError):
        follow(Script([ConnectionError("away")]), screen(out))


def test_where_the_host_process_is_gone_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> None:
        raise GetTimeoutError("no answer")

    monkeypatch.setattr(ray, "get", silent)
    actor = SimpleNamespace(look=SimpleNamespace(remote=lambda _cursor: None))
    living = ProcessIdentity.of(os.getpid())
    assert living is not None
    host = HostInfo(living, "runtime", 0.0, "/the/host.log")
    with pytest.raises(ConnectionError):
        RayLooker(actor, host).look((0, 0))
    gone = replace(host, identity=replace(living, started="another"))
    with pytest.raises(ClusterError, match="the local host process is gone") as caught:
        RayLooker(actor, gone).look((0, 0))
    assert caught.value.where == "/the/host.log"


def test_without_a_terminal_every_tenth_step_is_a_line(out: io.StringIO) -> None:
    rows = [step_row(step) for step in range(20)]
    follow(Script([snapshot(rows=rows, over=True)]), screen(out))
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0].split()[-1] for line in lines] == ["10/40", "20/40"]
    assert "\r" not in out.getvalue()


def test_the_time_that_is_left_holds_the_evaluations_that_are_left(out: io.StringIO) -> None:
    config = small_config(eval={"every_steps": 10})
    found = happened("evaluation.finished", took_s=20.0, loss=None, samples=4, tokens=9, lowest=False, unsaved="")
    rows = [step_row(9, time_s=1000.0)]
    follow(Script([snapshot(events=[found], rows=rows, over=True)]), Screen(config, out=out))
    assert "ETA 1m03s" in out.getvalue()  # of steps 20, 30 and 40


def test_a_line_tells_loss_norms_rate_and_what_was_not_applied(out: io.StringIO) -> None:
    row = step_row(9, lr_factor=0.8, outcome="dropped", applied=9, grad_norm=2.0)
    follow(Script([snapshot(rows=[row], over=True)]), screen(out))
    text = out.getvalue()
    for part in (
        "loss 4.9100",
        "grad 2.00->1.00",
        "(x0.80)",
        "bf16",
        "20,480 tok/s",
        "skipped 1",
        "ETA 0m03s",
        "dropped",
    ):
        assert part in text


def test_routine_events_are_left_out_and_others_carry_the_label(out: io.StringIO) -> None:
    events = [happened("run.started"), happened("checkpoint.good", generation=1)]
    follow(Script([snapshot(events=events, over=True)]), screen(out, label="twin: "))
    assert [line.split(" ", 1)[1] for line in out.getvalue().splitlines()] == ["twin: run started"]


def test_on_a_terminal_one_line_is_rewritten_and_left_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    answers = [
        snapshot(rows=[step_row(0)], phase=RunPhase.STARTING),
        snapshot(rows=[step_row(1)]),
        snapshot(events=[happened("run.started")]),
        snapshot(over=True),
    ]
    follow(Script(answers), screen(out))
    text = out.getvalue()
    assert text.count("\r\033[2K") == 4
    assert "[starting] step 1/40" in text
    assert text.rstrip("\n").rpartition("\033[2K")[2].startswith("step 2/40")
    assert text.endswith("\n")


def test_a_narrow_terminal_gets_no_wrapped_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    follow(Script([snapshot(rows=[step_row(0)]), snapshot(over=True)]), screen(out))
    assert len(out.getvalue().replace("\r\033[2K", "").rstrip("\n")) == 19


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("fault.detected", {"kind": "process", "rank": 1, "error": "killed"}, "31"),
        ("ladder.decided", {"action": "tier 1"}, "33"),
        ("recovery.caught_up", {}, "32"),
    ],
)
def test_on_a_terminal_trouble_decisions_and_recovery_have_their_colours(
    monkeypatch: pytest.MonkeyPatch, kind: str, data: dict[str, object], code: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    event = Event(1, 1000.0, kind, 1, 7, 1, data)  # type: ignore[arg-type] # JSON values
    follow(Script([snapshot(events=[event], over=True)]), screen(out))
    assert f"\033[{code}m" in out.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(5.9, "0m05s"), (61, "1m01s"), (3725, "1h02m")])
def test_durations_are_short(seconds: float, text: str) -> None:
    assert module._duration(seconds) == text


def waits(*ages_s: float, what: str = "rank 1 to load the state") -> Script:
    looks = [replace(snapshot(phase=RunPhase.STARTING), waiting=Wait(what, age_s, 60.0)) for age_s in ages_s]
    return Script([*looks, snapshot(over=True)])


def test_a_long_wait_says_for_what_and_until_when_once(out: io.StringIO) -> None:
    follow(waits(5.0, 11.0, 12.0, 30.0), screen(out))
    lines = [line for line in out.getvalue().splitlines() if "waiting" in line]
    assert len(lines) == 1
    assert "waiting for rank 1 to load the state, until " in lines[0]


def test_a_short_wait_is_nobodys_business(out: io.StringIO) -> None:
    follow(waits(1.0, 9.9), screen(out))
    assert "waiting" not in out.getvalue()
