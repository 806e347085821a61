"""Stores that a run can stand on, and those that are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stormsail.platform.config.infrastructure import StorageSection


@pytest.mark.parametrize("url", ["embedded", "s3://bucket", "s3://bucket/a/b", "file:///tmp/x y"])
def test_known_stores_are_taken_also_as_plain_text(url: str) -> None:
    assert StorageSection.model_validate(url).url == url


@pytest.mark.parametrize("url", ["", "/tmp/x", "http://x", "s3://", "file://x", "embedded/", "s3:///x"])
def test_other_stores_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        StorageSection(url=url)
