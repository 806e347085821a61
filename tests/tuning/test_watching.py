"""Following a sweep from its storage."""

from __future__ import annotations

import io
import threading

from stormsail.platform.runs import RunPlace
from stormsail.tuning.records import SweepRecords, trial_key
from stormsail.tuning.watching import watch_sweep


def test_it_tells_how_far_the_sweep_is_until_it_is_done(place: RunPlace) -> None:
    records, out = SweepRecords(place.store()), io.StringIO()
    last = next(iter(records.trials().values()))
    records.store.delete(trial_key(last.trial.id))
    later = threading.Timer(0.05, records.put_trial, [last])
    later.start()
    watch_sweep(records, out=out, every_s=0.01)
    later.join()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("sweep small: 27 of 28 trials")
    assert lines[-1].startswith("sweep small: 28 of 28 trials")
