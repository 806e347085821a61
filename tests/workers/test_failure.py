"""Who is at fault when a worker dies, and how it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stormsail.platform.errors import (
    ConfigError,
    InternalError,
    StorageUnavailableError,
    UserCodeError,
    WorkerFaultError,
)
from stormsail.workers.failure import _headline, _origin, failure_of
from stormsail.workers.inject import DrillError


@pytest.mark.parametrize(
    ("error", "origin"),
    [
        (UserCodeError("model.factory raised"), "user"),
        (DrillError("an error in user code"), "user"),
        (InternalError("ranks have come apart"), "ours"),
        (ConfigError("other data", where="data"), "ours"),
        (WorkerFaultError("no world was formed"), "peer"),
    ],
)
def test_each_error_of_ours_says_by_its_family_whose_it_is(error: Exception, origin: str) -> None:
    assert _origin(error) == origin


def test_a_store_that_failed_is_not_the_users_code_whatever_library_noticed(tmp_path: Path) -> None:
    """As the S3 client raises: caused by an error that began in a library's own file."""
    library = tmp_path / "site-packages" / "s3client.py"
    library.parent.mkdir()
    library.write_text("def call():\n    raise OSError('no route to host')\n")
    space: dict[str, Any] = {}
    exec(compile(library.read_text(), str(library), "exec"), space)

    def as_our_client_does() -> None:
        try:
            space["call"]()
        except OSError as error:
            raise StorageUnavailableError("nobody answers") from error

    with pytest.raises(StorageUnavailableError) as caught:
        as_our_client_does()
    assert _origin(caught.value) == "ours"


def test_an_exception_of_the_users_own_module_is_the_users() -> None:
    with pytest.raises(ValueError, match="bad sample") as caught:
        raise ValueError("bad sample")
    assert _origin(caught.value) == "user"


def test_a_headline_names_the_type_unless_the_error_is_ours_and_says_it_all() -> None:
    assert _headline(ValueError("bad")) == "ValueError: bad"
    assert _headline(ConfigError("other data", where="data")) == "data: other data"


def test_a_failure_carries_the_users_own_traceback_and_the_exit_code_of_an_error_of_ours() -> None:
    theirs = failure_of(UserCodeError("model.factory raised", details="their traceback"), attempt=2, rank=1, step=7)
    assert (theirs.attempt, theirs.rank, theirs.step) == (2, 1, 7)
    assert (theirs.details, theirs.exit_code) == ("their traceback", UserCodeError.exit_code)
    with pytest.raises(ValueError, match="bad") as caught:
        raise ValueError("bad")
    other = failure_of(caught.value, attempt=1, rank=0, step=-1)
    assert other.details.startswith("Traceback")
    assert (other.error, other.exit_code) == ("ValueError: bad", 1)
