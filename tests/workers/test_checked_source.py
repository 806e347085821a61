"""A user's data source, checked sample by sample (the first sample's checks are tested through the factory)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stormsail.platform.config.training import DataSection
from stormsail.platform.data.source import DataSource
from stormsail.platform.data.tokens import Sample
from stormsail.platform.errors import UserCodeError
from stormsail.workers.checked_source import CheckedSource, describe

SECTION = DataSection(factory="theirs:build", sequence_tokens=4)


class _Theirs:
    digest = "v1"

    def samples(self) -> int:
        return 3

    def sample(self, index: int) -> Sample:
        length = 4 if index < 2 else 3
        if index == 1:
            raise OSError("the file is gone")
        return np.zeros(length, np.int64), np.zeros(length, np.int64), np.ones(length, np.float32)


@pytest.fixture
def checked() -> CheckedSource:
    return CheckedSource(_Theirs(), SECTION, where="theirs.py:1")


def test_it_is_a_data_source_itself(checked: CheckedSource) -> None:
    assert isinstance(checked, DataSource)
    checked.check_once()


def test_a_later_sample_of_another_length_is_caught(checked: CheckedSource) -> None:
    with pytest.raises(UserCodeError, match=r"sample\(2\): tokens is ndarray of shape \[3\]"):
        checked.sample(2)


def test_a_later_sample_that_raises_is_the_users_error(checked: CheckedSource) -> None:
    with pytest.raises(UserCodeError, match=r"sample\(1\) raised OSError: the file is gone"):
        checked.sample(1)


def test_values_are_described_by_type_and_shape() -> None:
    assert describe(5) == "int"
    assert describe(torch.zeros(2, 3)) == "Tensor of shape [2, 3] and type torch.float32"
