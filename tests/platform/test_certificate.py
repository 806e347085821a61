"""What a certificate speaks for."""

from __future__ import annotations

import json

import pytest

from stormsail.platform.certificate import (
    Certificate,
    certificate_note,
    certified_values,
    moved_keys,
    parse_certificate,
    values_digest,
)
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError


def config(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"name": "large", "train": {"steps": 100}, **sections})


def certificate(of: RunConfig) -> Certificate:
    values = certified_values(of)
    return Certificate("small@1", 1.0, values_digest(values), values, ("seen",), ("not seen",))


def test_it_is_read_as_it_was_written() -> None:
    made = certificate(config())
    assert parse_certificate(made.dump(), "here") == made


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", certificate(config()).dump().replace("0.001", "0.002"), json.dumps({"version": 2})],
    ids=["empty", "list", "bare", "edited", "version"],
)
def test_what_was_not_written_like_this_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no stability certificate"):
        parse_certificate(text, "here")


def test_seed_name_and_machines_do_not_matter_to_it() -> None:
    made = certificate(config())
    other = config(seed=9, name="other", cluster={"workers": 4}, checkpoint={"every_steps": 50})
    assert moved_keys(made, other) == ()
    assert certificate_note(made, other) is None


def test_a_default_that_is_written_out_is_no_move() -> None:
    assert moved_keys(certificate(config()), config(model={"args": {"layers": 4}})) == ()


def test_it_stops_speaking_when_a_setting_moves() -> None:
    moved = config(optimizer={"lr": 0.5, "betas": [0.9, 0.999]}, model={"args": {"d_model": 512}})
    note = certificate_note(certificate(config()), moved)
    assert note is not None
    assert "optimizer.lr: 0.001 -> 0.5" in note
    assert "model.args.d_model: 256 -> 512" in note


def test_it_speaks_for_the_data_and_how_they_are_made() -> None:
    trained = config(data={"factory": "mine:data", "args": {"path": "a", "mix": {"code": 0.5}}})
    other = config(data={"factory": "mine:data", "args": {"path": "b", "mix": {"code": 0.5}}})
    assert certificate(trained).digest != certificate(other).digest
    assert moved_keys(certificate(trained), other) == ("data.args.path: a -> b",)
    fewer = config(data={"factory": "mine:data", "args": {"path": "a"}})
    assert moved_keys(certificate(trained), fewer) == ("data.args.mix.code: 0.5 -> None",)


def test_a_run_without_one_is_told_so_and_a_drill_is_not() -> None:
    assert "no stability certificate" in str(certificate_note(None, config()))
    drill = config(drill={"faults": [{"kind": "kill", "step": 4}]})
    assert certificate_note(None, drill) is None
