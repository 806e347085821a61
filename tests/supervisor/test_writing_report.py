"""The report lies where the mirror and later readers find it."""

from __future__ import annotations

import json

from stormsail.platform.runs import RunPlace
from stormsail.platform.tracking import REPORT_KEY
from stormsail.supervisor.writing_report import store_report


def test_the_report_is_stored_as_json_and_may_be_stored_again(past: RunPlace) -> None:
    store = past.store()
    for _ in range(2):
        store_report(store)
    report = json.loads(store.get(REPORT_KEY))
    assert (report["run"], report["outcome"], report["exit_code"]) == ("run", "done", 0)
    assert [incident["kind"] for incident in report["incidents"]] == ["spike"]
