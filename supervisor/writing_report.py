"""Putting the report onto the run's storage, where the MLflow mirror and later readers find it."""

from __future__ import annotations

import json

from stormsail.platform.journal import Journal
from stormsail.platform.series import read_series
from stormsail.platform.storage.store import ObjectStore
from stormsail.platform.tracking import REPORT_KEY
from stormsail.supervisor.report.build import build_report


def store_report(store: ObjectStore) -> None:
    """Build the report from what is stored and store it."""
    report = build_report(Journal.read(store), list(read_series(store)))
    store.put(REPORT_KEY, json.dumps(report.to_json()).encode())
