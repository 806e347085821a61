"""Secrets by reference."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stormsail.platform.alerts.references import (
    check_references,
    keep_variables,
    kept_variables,
    references_of,
    resolve,
    scrub,
)
from stormsail.platform.config.alerts import AlertsSection
from stormsail.platform.errors import ConfigError

MAIL = {"host": "mail", "sender": "a@x", "to": ["b@x"], "user": "me", "password": "env:PASSWORD"}
URL = "https://hooks.example/services/T0/B0/token"


def section(**values: object) -> AlertsSection:
    return AlertsSection.model_validate(values)


def test_all_references_are_found() -> None:
    found = references_of(section(slack="env:HOOK", email=MAIL, apprise="file:/etc/urls"))
    assert found == {
        "alerts.slack": "env:HOOK",
        "alerts.email.password": "env:PASSWORD",
        "alerts.apprise": "file:/etc/urls",
    }


def test_a_reference_is_read_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{URL}\n", encoding="utf-8")
    assert resolve("k", f"file:{tmp_path}/secret", {}) == URL
    assert resolve("k", "env:HOOK", {"HOOK": URL}) == URL


@pytest.mark.parametrize("reference", ["env:HOOK", "file:/no/such/file"])
def test_a_reference_to_nothing_names_the_key(reference: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_references(section(slack=reference), {"HOOK": " "})
    assert caught.value.where == "alerts.slack"


def test_an_empty_file_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    with pytest.raises(ConfigError, match="is empty"):
        resolve("k", f"file:{tmp_path}/secret", {})


def test_values_of_variables_are_kept_for_the_sender_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "alerts.json"
    keep_variables(section(slack="env:HOOK", apprise="file:/etc/urls"), {"HOOK": URL, "OTHER": "x"}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept_variables(path, {"OTHER": "x"}) == {"HOOK": URL, "OTHER": "x"}
    assert kept_variables(tmp_path / "nothing", {"A": "b"}) == {"A": "b"}


def test_nothing_is_kept_where_nothing_is_referred_to(tmp_path: Path) -> None:
    keep_variables(section(slack="file:/etc/hook"), {}, tmp_path / "alerts.json")
    assert not (tmp_path / "alerts.json").exists()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"cannot open {URL} now", "cannot open *** now"),
        ("no path /services/T0/B0/token here", "no path /*** here"),
        ("line tgram://bot/chat broke", "line *** broke"),
        ("nothing secret", "nothing secret"),
    ],
)
def test_no_part_of_a_secret_is_shown(text: str, clean: str) -> None:
    assert scrub(text, (URL, "tgram://bot/chat\nmailto://x")) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("nonnumeric port: 'hunter%32secret@127.0.0.1'", "nonnumeric port: '***@127.0.0.1'"),
        ("cannot resolve bot:hunter%32secret@127.0.0.1", "cannot resolve ***"),
        ("hunter2secret was refused", "*** was refused"),
        ("no way to 127.0.0.1", "no way to 127.0.0.1"),
    ],
)
def test_a_password_in_an_address_is_a_secret_too(text: str, clean: str) -> None:
    assert scrub(text, ("https://bot:hunter%32secret@127.0.0.1/hooks/abcdef",)) == clean
