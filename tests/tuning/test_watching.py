"""Following a sweep from its storage."""

from __future__ import annotations

import io

from stormsail.platform.runs import RunPlace
from stormsail.tuning.records import SweepRecords, trial_key
from stormsail.tuning.watching import watch_sweep


def test_it_tells_how_far_the_sweep_is_until_it_is_done(place: RunPlace) -> None:
    records = SweepRecords(place.store())
    last = next(iter(records.trials().values()))
    records.store.delete(trial_key(last.trial.id))

    class Screen(io.StringIO):
        """The last trial is finished when the first line has been read."""

        def flush(self) -> None:
            records.put_trial(last)

    out = Screen()
    watch_sweep(records, out=out, every_s=0.001)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("sweep small: 27 of 28 trials")
    assert lines[-1].startswith("sweep small: 28 of 28 trials")
