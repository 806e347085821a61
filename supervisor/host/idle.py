"""When the host process may end: pure, time comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class IdleClock:
    """Since when nobody has used the host.

    Attributes:
        limit_s: It ends after so long without use.
        used_s: When it was last used, or last seen to carry a run.
        looked_s: When somebody last looked for runs.
    """

    limit_s: float
    used_s: float
    looked_s: float

    @classmethod
    def start(cls, limit_s: float, now_s: float) -> Self:
        """A clock that begins now."""
        return cls(limit_s, now_s, now_s)

    def used(self, now_s: float) -> IdleClock:
        """A command used the host."""
        return replace(self, used_s=now_s)

    def looked(self, now_s: float, *, busy: bool) -> IdleClock:
        """Somebody looked, and found it busy (a live run, a lease) or not."""
        return replace(self, looked_s=now_s, used_s=now_s if busy else self.used_s)

    def should_look(self, now_s: float) -> bool:
        """Whether it is time to look for runs: a few times within the limit, and always before ending."""
        return now_s - self.looked_s >= min(30.0, self.limit_s / 4) or self.should_end(now_s)

    def should_end(self, now_s: float) -> bool:
        """Whether the limit has passed; whoever acts on it has looked at the same moment."""
        return now_s - self.used_s >= self.limit_s
