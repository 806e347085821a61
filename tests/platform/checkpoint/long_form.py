"""Long form of the fault tests: whole histories of a run, each with faults drawn from a seed, judged by an oracle.

    python -m tests.platform.checkpoint.long_form --from 0 --cases 100000 --jobs 2

A case is a pure function of its seed. It plays a history (saves as keyframes and differences, writers, collectors,
sweepers and folds that die at any operation, sweeps in the middle of a fold, differences that go once they were folded,
pins, stores that go away in the middle and come back, new generations on other world sizes, rollbacks, retention,
commits by worlds that were cut off long ago) with the real writer and reader on a store in memory, then harms objects
(bits, cuts, losses, swaps, stale ones of another generation), and demands: whatever restores is bit for bit the state
that was saved; whatever was not harmed restores, and of a fold and what it was folded from one is enough; whatever does
not restore was harmed, and is named; what was committed stays until retention gives it up; of the live line the newest
that is whole is chosen; a store that only fails for a while is never taken for damage.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.platform.checkpoint.conftest import Kit
from tests.platform.checkpoint.history import History
from tests.platform.checkpoint.oracle import harm, judge
from tests.platform.checkpoint.playing import play

from stormsail.platform.console import emit

BLOCK = 50


def run_case(seed: int) -> Counter[str]:
    """Play one case; gives what happened.

    Raises:
        AssertionError: A promise was broken; the message tells the whole story.
    """
    history = History(seed, Kit(), random.Random(seed))
    try:
        play(history)
        judge(history, harm(history))
    except (Exception, pytest.fail.Exception) as error:
        told = "\n  ".join(history.story)
        raise AssertionError(f"seed {seed}: {error!r}\n  {told}") from error
    return history.tally


def run_block(seeds: range) -> Counter[str]:
    """Many cases, one after another."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        tally += run_case(seed)
        tally["cases"] += 1
    return tally


def main() -> None:
    """Run the cases that the command line names, and say how fast that was."""
    parser = argparse.ArgumentParser(description="Fault histories from seeds.")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed")
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    begun = time.perf_counter()
    tally: Counter[str] = Counter()
    last = asked.first + asked.cases
    blocks = [range(start, min(start + BLOCK, last)) for start in range(asked.first, last, BLOCK)]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for found in pool.map(run_block, blocks):
            tally += found
    took_s = time.perf_counter() - begun
    for kind, count in sorted(tally.items()):
        emit(f"{count:>9}  {kind}")
    emit(f"seeds {asked.first} to {last - 1}: 0 promises broken, {took_s:.1f} s, {asked.cases / took_s:.1f} cases/s")


if __name__ == "__main__":
    main()
