"""The picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.engine import run
from stormsail.supervisor.backtest.outcome import Judged
from stormsail.supervisor.backtest.plot import draw
from stormsail.supervisor.backtest.synthetic import Trouble, troubled
from stormsail.workers.detect.rules.presets import preset


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    curves = [troubled(seed, 200, Trouble("spike", 150, 3.0, 20.0), norms=seed == 2)[0] for seed in (2, 4)]
    return [Judged(curve, tuple(run(preset("default"), curve))) for curve in curves]


def test_it_has_a_panel_for_each_curve(judged: list[Judged], tmp_path: Path) -> None:
    draw(judged, tmp_path / "seen.svg")
    text = (tmp_path / "seen.svg").read_text(encoding="utf-8")
    assert text.count("<!-- loss (nats) -->") == 2
    assert "1 incident (red)" in text


def test_an_unknown_ending_is_refused(judged: list[Judged], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot draw into \.gif"):
        draw(judged, tmp_path / "seen.gif")


def test_a_place_that_cannot_be_written_is_an_error(judged: list[Judged], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        draw(judged, tmp_path / "nowhere" / "seen.svg")
