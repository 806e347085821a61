"""The commands that only look at a run: from its storage, without Ray; and what the last line of a drill decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_kit import Staff, small_config

from stormsail.platform.checkpoint.commits import load_manifest
from stormsail.platform.cli import run as run_command
from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import TryLaterError
from stormsail.platform.messages import CheckpointRef
from stormsail.platform.runs import RunPlace
from stormsail.platform.storage.store import StoreAddress
from stormsail.supervisor import training
from stormsail.supervisor.commands import register

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    root: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command against the store of this test; gives its exit code and what it said."""
    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command([*words, "--storage", root.url], registers=[register])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def spoken(out: str) -> dict[str, Any]:
    """The one JSON object of an output."""
    found: dict[str, Any] = json.loads(out)
    assert found["version"] == 1
    return found


def test_status_tells_how_a_run_stands(command: Command, past: RunPlace) -> None:
    code, out, _ = command("status", "run")
    assert code == 0
    assert out.startswith("run (finished")
    assert spoken(command("status", "run", "--json")[1])["outcome"] == "finished"


def test_events_are_told_oldest_first(command: Command, past: RunPlace) -> None:
    _, out, _ = command("events", "run")
    lines = out.splitlines()
    assert lines[0].endswith("run started")
    assert "finished at step 30" in lines[-1]
    kinds = [event["kind"] for event in spoken(command("events", "run", "--json")[1])["events"]]
    assert kinds[0] == "run.started"


@pytest.mark.filterwarnings("ignore")  # matplotlib's own imports
def test_the_report_says_what_happened_and_may_be_drawn(command: Command, past: RunPlace, tmp_path: Path) -> None:
    code, out, _ = command("report", "run", "--plot", str(tmp_path / "run.svg"))
    assert code == 0
    assert "loss z 14.0" in out or "spike" in out
    assert (tmp_path / "run.svg").is_file()
    assert len(spoken(command("report", "run", "--json")[1])["incidents"]) == 1


def test_checkpoints_are_listed(command: Command, past: RunPlace) -> None:
    rows = spoken(command("checkpoints", "ls", "run", "--json")[1])["checkpoints"]
    assert [row["step"] for row in rows] == [10, 20, 23, 30]


def test_a_whole_run_verifies_with_0(command: Command, past: RunPlace) -> None:
    code, out, _ = command("checkpoints", "verify", "run")
    assert (code, out) == (0, "4 checkpoints verified, 0 damaged or missing objects\n")


def test_a_damaged_one_is_exit_code_3_and_named(command: Command, past: RunPlace) -> None:
    store = past.store()
    key = load_manifest(store, CheckpointRef(1, 20)).packs[0].key
    store.put(key, store.get(key)[:-1] + b"?")
    code, out, err = command("checkpoints", "verify", "run")
    assert code == 3
    assert f"{key}: damaged: " in out
    assert "(needed by 1/20)" in out
    assert "1 damaged or missing objects" in err


def test_an_unknown_run_is_exit_code_2_with_the_nearest_name(command: Command, past: RunPlace) -> None:
    code, _, err = command("status", "rum")
    assert code == 2
    assert "did you mean 'run'" in err


def test_a_run_that_is_over_need_not_be_stopped(command: Command, past: RunPlace) -> None:
    code, out, _ = command("stop", "run")
    assert (code, out) == (0, "run run is already finished\n")


class TestTheLastLineOfADrill:
    def finish(self, played: Callable[[Callable[[Staff], None]], RunPlace], *, identical: bool) -> RunPlace:
        config = small_config(drill={"twin_step": 10, "faults": [{"kind": "kill", "step": 5}]})

        def drill(staff: Staff) -> None:
            staff.ledger.note("run.continued", config=dump_config(config), owner="x", stop_step=None, changes=[])
            staff.steps(0, 4)
            staff.hearing.drill_fired(0, "kill", 5, 0)
            staff.ledger.note("fault.detected", step=5, kind="process", rank=0, onset=5, error="", details="")
            staff.ledger.note("recovery.caught_up", step=6, at_s=1.0)
            staff.ledger.note("drill.twin", step=10, digest="a", twin_digest="a", identical=identical)

        return played(drill)

    def test_a_proof_that_fails_is_exit_code_3(
        self,
        played: Callable[[Callable[[Staff], None]], RunPlace],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from stormsail.platform.errors import CheckFailedError
        from stormsail.supervisor.commands import _finish

        with pytest.raises(CheckFailedError):
            _finish(self.finish(played, identical=False), as_json=False)
        assert capsys.readouterr().out.splitlines()[-1].startswith("demo: identical no")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [((), "repair"), (("--on-anomaly=stop",), "stop"), (("--set", "ladder.on_anomaly=stop"), "stop")],
)
def test_what_becomes_of_an_anomaly_is_an_option_of_train(
    words: tuple[str, ...], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []

    def started(config: RunConfig, *_args: object, **_options: object) -> RunPlace:
        seen.append(config)
        raise TryLaterError("that is all the test wants to know")

    monkeypatch.setenv("STORMSAIL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(training, "train", started)
    file = tmp_path / "run.yaml"
    file.write_text("name: run\ntrain: {steps: 400}\n")
    assert run_command(["train", str(file), *words], registers=[register]) == 75
    assert [config.ladder.on_anomaly for config in seen] == [wanted]
