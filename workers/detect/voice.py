"""When a finding that lasts is said again: at its start, when it becomes an incident, and now and then. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stormsail.workers.detect.rules.row import Level

NEAR_STEPS = 50
"""Findings of one rule that are no further apart are one."""

NEAR_ROWS = 2
"""The same where rows lie far apart."""


def near(stride: int) -> int:
    """Steps within which two findings are one, for rows `stride` steps apart."""
    return max(NEAR_STEPS, NEAR_ROWS * stride)


@dataclass(frozen=True, slots=True)
class Voice:
    """What one rule has said of late.

    Attributes:
        level: Level of the last finding, or None before the first.
        heard: Step of the last finding.
        said: Step at which it was last passed on.
    """

    level: Level | None = None
    heard: int = 0
    said: int = 0

    def hear(self, step: int, level: Level, *, together: int, restart: bool = False) -> tuple[Voice, str]:
        """Take a finding.

        Args:
            step: When.
            level: How much it may cost.
            together: `near` of the rows.
            restart: The run was started anew just before this row.

        Returns:
            The voice afterwards, and "" for nothing new, "new" for a finding that begins or grows worse, and "repeated"
            for one that lasts: said again so that nobody reads "calm" from silence.
        """
        lasting = self.level is not None and 0 <= step - self.heard <= together and not restart
        worse = lasting and self.level is not None and level.rank > self.level.rank
        if lasting and not worse and (level is not self.level or step - self.said < together):
            return Voice(self.level, step, self.said), ""
        return Voice(level, step, step), "repeated" if lasting and not worse else "new"
