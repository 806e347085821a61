"""Every source file has its test file: `supervisor/ladder.py` is tested by `tests/supervisor/test_ladder.py`."""

from __future__ import annotations

from pathlib import Path

# Files without a test file of their own, and why. An entry that is no longer true fails the second test.
UNMIRRORED: dict[str, str] = {
    "supervisor/actor.py": "a thin Ray actor around RunSupervisor, run by tests/cluster",
    "supervisor/room.py": "asks Ray; tests/cluster/test_survives.py kills a controller before and after its workers live",
    "supervisor/run_spec.py": "a value without behaviour; test_run.py starts supervisors with it",
    "supervisor/attempt_result.py": "a value without behaviour; test_attempt.py and test_faults.py use it",
}


def test_every_source_file_has_a_mirrored_test(root: Path, sources: list[Path]) -> None:
    bare = {name for name in names(root, sources) if not mirror(root, name).is_file()}
    assert bare <= UNMIRRORED.keys(), "write the test, or name the file in UNMIRRORED with the reason"


def test_the_list_of_exceptions_is_true(root: Path, sources: list[Path]) -> None:
    stale = {name for name in UNMIRRORED if name not in names(root, sources) or mirror(root, name).is_file()}
    assert not stale
    assert all(UNMIRRORED.values())


def names(root: Path, sources: list[Path]) -> set[str]:
    return {path.relative_to(root).as_posix() for path in sources}


def mirror(root: Path, name: str) -> Path:
    source = Path(name)
    return root / "tests" / source.parent / f"test_{source.name}"
