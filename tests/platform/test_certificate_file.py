"""The certificate beside a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.certificate import Certificate, certified_values, values_digest
from stormsail.platform.certificate_file import certificate_path, note_for, read_certificate
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError


def test_it_lies_beside_the_file_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    config = RunConfig.model_validate({"name": "large", "train": {"steps": 100}})
    assert read_certificate(file) is None
    assert note_for(file, config) is not None
    values = certified_values(config)
    made = Certificate("small@1", 1.0, values_digest(values), values, (), ())
    (tmp_path / "large.certificate.json").write_text(made.dump(), encoding="utf-8")
    assert read_certificate(file) == made
    assert note_for(file, config) is None


@pytest.mark.parametrize("text", ["{", '{"version": 1}'])
def test_a_damaged_one_is_told_and_stops_no_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "large.yaml"
    config = RunConfig.model_validate({"name": "large", "train": {"steps": 100}})
    certificate_path(file).write_text(text, encoding="utf-8")
    note = note_for(file, config)
    assert note is not None
    assert note.startswith("the stability certificate speaks for nothing: ")
    assert "large.certificate.json: this is no stability certificate: it is damaged; write it again" in note
    drill = RunConfig.model_validate({**config.model_dump(), "drill": {"faults": [{"kind": "kill", "step": 4}]}})
    assert note_for(file, drill) is None


def test_one_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    certificate_path(file).mkdir()
    with pytest.raises(ConfigError, match=r"large\.certificate\.json"):
        read_certificate(file)
