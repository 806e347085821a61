"""Which cluster a run joins and what it asks of it; the joining itself is run by tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from tests.support.run_kit import small_config

from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home
from stormsail.supervisor import cluster


@pytest.mark.parametrize(
    ("configured", "around", "remembered", "joined"),
    [
        ("here:1", "there:2", "once:3", "here:1"),
        (None, "there:2", "once:3", "there:2"),
        (None, None, "once:3", "once:3"),
        (None, None, None, None),
    ],
)
def test_the_configuration_comes_before_what_is_around_us_and_that_before_what_was(
    *,
    configured: str | None,
    around: str | None,
    remembered: str | None,
    joined: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if around is not None:
        monkeypatch.setenv("RAY_ADDRESS", around)
    monkeypatch.setattr(cluster, "mute_error_feed", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    config = small_config(cluster={"address": configured})
    assert cluster.connect(config, Home(tmp_path), print, remembered=remembered) == joined


class TestSeveralNodes:
    @pytest.fixture(autouse=True)
    def _two_of_three_nodes_live(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": alive} for alive in (True, False, True)])

    @pytest.mark.parametrize(
        ("config", "where"),
        [
            (small_config(), "storage"),
            (small_config(storage={"url": "s3://bucket/runs"}), "cluster.shared_path"),
        ],
    )
    def test_they_must_all_reach_what_the_run_keeps(self, config: RunConfig, where: str) -> None:
        with pytest.raises(ConfigError, match="2 nodes") as caught:
            cluster._refuse_embedded_on_many(config)
        assert caught.value.where == where

    def test_a_run_that_has_both_is_welcome(self) -> None:
        config = small_config(storage={"url": "s3://bucket/runs"}, cluster={"shared_path": "/shared"})
        cluster._refuse_embedded_on_many(config)


def test_one_node_may_keep_all_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}, {"Alive": False}])
    cluster._refuse_embedded_on_many(small_config())
