"""The winner in the target's YAML."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tuning.conftest import TARGET

from stormsail.platform.certificate_file import note_for, read_certificate
from stormsail.platform.config.dump import dump_config
from stormsail.platform.config.load import load_config
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import CheckFailedError, ConfigError
from stormsail.platform.runs import RunPlace
from stormsail.tuning.applying import apply_sweep, edit_yaml
from stormsail.tuning.records import SweepRecords, trial_key
from stormsail.tuning.transfer import Handover, Value


def test_values_come_with_their_source_and_comments_stay(place: RunPlace, tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    applied = apply_sweep(place, None)
    text = file.read_text(encoding="utf-8")
    for kept in ("# The large run.", "# a thousand", "# as published", "# from last year"):
        assert kept in text
    assert "# sweep small@1: " in text
    config = load_config(file, environ={})
    assert (config.optimizer.lr, config.optimizer.betas[0], config.train.clip_norm) == (0.01, 0.9, 1.0)
    assert (config.model.args["mup_base_width"], config.optimizer.args["hidden_lr_scale"]) == (32, 0.5)
    assert config.model.args["layers"] == 4
    assert any(line.startswith("optimizer.lr: 0.001 -> 0.01") for line in applied.changed)


def test_the_certificate_speaks_for_what_was_written_until_it_moves(place: RunPlace, tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    assert note_for(file, load_config(file, environ={})) is not None
    apply_sweep(place, None)
    assert read_certificate(file) is not None
    assert note_for(file, load_config(file, environ={})) is None
    moved = load_config(file, environ={}, overrides=["optimizer.lr=0.02"])
    assert "optimizer.lr: 0.01 -> 0.02" in str(note_for(file, moved))


def test_applying_twice_changes_nothing_more(place: RunPlace, tmp_path: Path) -> None:
    apply_sweep(place, None)
    once = (tmp_path / "large.yaml").read_text(encoding="utf-8")
    apply_sweep(place, None)
    assert (tmp_path / "large.yaml").read_text(encoding="utf-8") == once


def test_an_incomplete_sweep_hands_nothing_over(place: RunPlace, tmp_path: Path) -> None:
    records = SweepRecords(place.store())
    records.store.delete(trial_key(next(iter(records.trials()))))
    with pytest.raises(CheckFailedError, match="incomplete"):
        apply_sweep(place, None)
    assert (tmp_path / "large.yaml").read_text(encoding="utf-8") == TARGET


def test_a_file_of_another_model_is_refused(place: RunPlace, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "name: other\ntrain: {steps: 9}\nschedule: {warmup_steps: 1}\nmodel: {factory: mine:model}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match="was run for model builtin:transformer"):
        apply_sweep(place, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [("d_model: 64", "d_model: 128"), ("steps: 1000", "steps: 2000"), ("global_batch: 32", "global_batch: 16")],
)
def test_a_file_of_another_size_is_refused_and_left_as_it_is(
    place: RunPlace, tmp_path: Path, old: str, new: str
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TARGET.replace(old, new), encoding="utf-8")
    before = other.read_bytes()
    assert before != TARGET.encode()
    with pytest.raises(ConfigError, match="run for other settings"):
        apply_sweep(place, other)
    assert other.read_bytes() == before


def test_a_file_with_another_first_beta_is_refused(place: RunPlace, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"{TARGET}  betas: [0.8, 0.95]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"optimizer.betas.0: 0.9 -> 0.8"):
        apply_sweep(place, other)


def test_the_mode_is_kept_and_a_link_stays_one_with_its_certificate(place: RunPlace, tmp_path: Path) -> None:
    file, link = tmp_path / "large.yaml", tmp_path / "elsewhere" / "link.yaml"
    file.chmod(0o640)
    link.parent.mkdir()
    link.symlink_to(file)
    applied = apply_sweep(place, link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert applied.certificate == tmp_path / "large.certificate.json"
    assert note_for(link, load_config(link, environ={})) is None
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_what_cannot_be_written_is_said_and_nothing_is_changed(
    place: RunPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / f"{'x' * 250}.yaml"  # no room for the name of a part
    long.write_text(TARGET, encoding="utf-8")
    with pytest.raises(ConfigError, match="the winner cannot be written"):
        apply_sweep(place, long)
    (tmp_path / "large.certificate.json").mkdir()
    with pytest.raises(ConfigError, match="the winner cannot be written"):
        apply_sweep(place, None)
    (tmp_path / "large.certificate.json").rmdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write everything
    with pytest.raises(ConfigError, match="Permission denied"):
        apply_sweep(place, None)
    assert {file.read_text(encoding="utf-8") for file in (long, tmp_path / "large.yaml")} == {TARGET}
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_sections_that_share_a_mapping_are_not_edited(place: RunPlace, tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    own = TARGET.replace("data: {sequence_tokens: 64}\n", "")
    data = "data: {factory: 'tests.support.quadratic:data', sequence_tokens: 64, args: *shared}"  # takes any args
    file.write_text(f"{own}  args: &shared {{}}\n{data}\n", encoding="utf-8")
    records, before = SweepRecords(place.store()), file.read_bytes()
    plan = records.plan()
    assert plan is not None
    records.store.delete("plan.json")
    records.put_plan(replace(plan, target=dump_config(load_config(file, environ={}))))
    with pytest.raises(ConfigError, match=r"would change more than them: data\.args\.hidden_lr_scale: None -> 0\.5"):
        apply_sweep(place, None)
    assert file.read_bytes() == before


def test_one_number_of_a_list_is_set_and_the_rest_kept(target: RunConfig) -> None:
    handover = Handover((Value("optimizer.betas.1", 0.99, "why"), Value("train.clip_norm", None, "none")), ())
    text, changed = edit_yaml("name: x\ntrain: {steps: 5}  # five\n", handover, target, "sweep s@1")
    assert "betas: [0.9, 0.99]" in text
    assert "clip_norm:" in text
    assert changed[0].startswith("optimizer.betas.1: 0.95 -> 0.99")
