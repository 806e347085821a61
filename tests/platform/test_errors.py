"""The error families: what they say, which code they exit with, and that they survive the way between processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from stormsail.platform import errors
from stormsail.platform.errors import CheckpointError, StormsailError, UserCodeError


def families(error: type[StormsailError]) -> Iterator[type[StormsailError]]:
    """The class and everything below it that the module itself defines."""
    if error.__module__ == errors.__name__:
        yield error
    for child in error.__subclasses__():
        yield from families(child)


ALL = sorted(set(families(StormsailError)), key=lambda error: error.__name__)


@pytest.mark.parametrize("family", ALL)
def test_an_error_comes_back_from_a_pickle_as_it_was(family: type[StormsailError]) -> None:
    error = family("it broke", where="rank 3", todo="mend it")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is family
    assert (back.what, back.where, back.todo) == ("it broke", "rank 3", "mend it")
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_the_parts_of_a_user_code_error_survive_a_pickle() -> None:
    back = pickle.loads(pickle.dumps(UserCodeError("your model raised", details="Traceback ...")))
    assert back.details == "Traceback ..."


def test_the_objects_of_a_checkpoint_error_survive_a_pickle() -> None:
    back = pickle.loads(pickle.dumps(CheckpointError("damaged", objects=("a/b", "a/c"))))
    assert back.objects == ("a/b", "a/c")


def test_a_message_says_where_first_and_what_to_do_last() -> None:
    error = StormsailError("no such bucket", where="s3://runs", todo="Create it.")
    assert str(error) == "s3://runs: no such bucket\nCreate it."


def test_a_message_without_parts_is_the_sentence_alone() -> None:
    assert str(StormsailError("it broke")) == "it broke"


@pytest.mark.parametrize("family", ALL)
def test_every_family_exits_with_a_documented_code(family: type[StormsailError]) -> None:
    assert family.exit_code in {1, 2, 3, 4, 5, 6, 75}


@pytest.mark.parametrize("family", ALL)
def test_every_family_says_what_it_is_for(family: type[StormsailError]) -> None:
    assert family.__dict__.get("__doc__")
