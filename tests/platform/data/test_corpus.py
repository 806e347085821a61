"""The standard library as a data set."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stormsail.platform.config.builtin_args import PythonStdlibArgs
from stormsail.platform.data import corpus
from stormsail.platform.data.corpus import python_stdlib, stdlib_name
from stormsail.platform.data.tokens import TokenDataset
from stormsail.platform.errors import ConfigError

pytestmark = pytest.mark.slow  # writes megabytes

SMALL = PythonStdlibArgs(max_bytes=200_000)


def test_it_is_python_source_and_of_the_size_asked_for(tmp_path: Path) -> None:
    spec = python_stdlib(tmp_path / "data", SMALL)
    assert (spec.tokens, spec.vocab_size, spec.dtype) == (200_000, 256, "uint8")
    text = (tmp_path / "data" / spec.shards[0].file).read_bytes()
    first, second = text.split(b"\0")[:2]
    ast.parse(first)
    ast.parse(second)


def test_a_second_call_finds_what_the_first_one_wrote(tmp_path: Path) -> None:
    first = python_stdlib(tmp_path / "data", SMALL)
    inode = (tmp_path / "data").stat().st_ino
    assert python_stdlib(tmp_path / "data", SMALL) == first
    assert (tmp_path / "data").stat().st_ino == inode


def test_two_machines_with_the_same_python_get_the_same_digest(tmp_path: Path) -> None:
    assert python_stdlib(tmp_path / "a", SMALL).digest == python_stdlib(tmp_path / "b", SMALL).digest


def test_the_name_is_stable_and_follows_the_arguments() -> None:
    assert stdlib_name(SMALL) == stdlib_name(SMALL) != stdlib_name(PythonStdlibArgs(max_bytes=100))


def test_tests_packages_and_generated_settings_are_left_out() -> None:
    unwanted = ["test/a.py", "x/tests/a.py", "site-packages/a.py", "_sysconfigdata__linux.py", "config-3.11-x/a.py"]
    assert not any(corpus._wanted(Path(path)) for path in unwanted)
    assert all(corpus._wanted(Path(path)) for path in ["ast.py", "unittest/case.py", "testing.py"])


def test_a_python_without_sources_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without the sources"):
        corpus._sources(tmp_path)


def test_a_damaged_folder_is_reported_and_not_trained_on(tmp_path: Path) -> None:
    spec = python_stdlib(tmp_path / "data", SMALL)
    (tmp_path / "data" / spec.shards[0].file).unlink()
    with pytest.raises(ConfigError, match="shard is missing"):
        python_stdlib(tmp_path / "data", SMALL)
    with pytest.raises(ConfigError, match="shard is missing"):
        TokenDataset.open(tmp_path / "data")
