"""The phases of a run, as one transition table.

Theory of operation
-------------------
1. Everything that can change the phase of a run is in `TRANSITIONS`. Nobody else assigns a phase: the supervisor
   holds one value, and replaces it by what `advance` returns.
2. This file does not know who is calling, what time it is, or why a fault happened. Which repair is right is the
   ladder's question (`ladder.py`); the table only says what may follow what.
3. A phase says what the run is *waiting for*, which is also what its time limit depends on:

   - `waiting`: free resources in the cluster;
   - `starting`: the worker processes, the process group, the engines and the state, up to the first step;
   - `running`: nothing, steps are being done;
   - `recovering`: the ladder's verdict and its repair;
   - `replaying`: the end of a window that is computed in FP32; steps are being done there too;
   - `stopping`: a last checkpoint and the end of the processes, because a person asked.

4. There are two ways out of `recovering`. A repair inside living workers (rollback, replay) leads straight back to
   `running` or `replaying`. A repair that needs new processes goes through `waiting`, because the resources of the
   dead ones may be gone, and through `starting`, where the next first step tells which of the two it becomes.
5. A fault while another repair is under way is no special case: `recovering` stays `recovering`, and the ladder climbs.
6. A request to stop is honoured in every phase that is not over. A fault while stopping does not start a repair:
   the newest committed state stands, which is what a later start would resume from anyway.
7. A fault is never terminal by itself. `exhausted`, `failed` are verdicts, given by the ladder or by the supervisor
   (a user's deterministic error, a store that stayed away, resources that never came).
8. A supervisor that takes over where another one died begins at `waiting`: what it must know of the past is in the
   journal (episodes, budgets, LR events), and the phase is not part of it.
9. A pair that is not in the table is a bug of ours. It raises, and because `advance` returns a new phase instead of
   changing one, the caller's phase is what it was.

`diagram()` is generated from the table; the documentation shows its output, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from stormsail.platform.errors import InternalError


class RunPhase(StrEnum):
    """What a run is waiting for; the last four are terminal."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    REPLAYING = "replaying"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    EXHAUSTED = "exhausted"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        """Whether the run is over; nothing may be said to it any more."""
        return not TRANSITIONS[self]


class RunEvent(StrEnum):
    """What can happen to a run."""

    RESOURCES_READY = "resources_ready"
    RESOURCES_LOST = "resources_lost"
    STEPPING = "stepping"
    REPLAY_BEGUN = "replay_begun"
    REPLAY_ENDED = "replay_ended"
    FAULT = "fault"
    RESTART = "restart"
    STOP_ASKED = "stop_asked"
    ENDED = "ended"
    FINISHED = "finished"
    LADDER_USED_UP = "ladder_used_up"
    GAVE_UP = "gave_up"


START = RunPhase.WAITING

TRANSITIONS: Mapping[RunPhase, Mapping[RunEvent, RunPhase]] = MappingProxyType(
    {
        RunPhase.WAITING: {
            RunEvent.RESOURCES_READY: RunPhase.STARTING,
            RunEvent.STOP_ASKED: RunPhase.STOPPED,  # no process is there that could save anything
            RunEvent.GAVE_UP: RunPhase.FAILED,
        },
        RunPhase.STARTING: {
            RunEvent.STEPPING: RunPhase.RUNNING,
            RunEvent.REPLAY_BEGUN: RunPhase.REPLAYING,
            RunEvent.RESOURCES_LOST: RunPhase.WAITING,  # somebody else was quicker
            RunEvent.FINISHED: RunPhase.DONE,  # the restored state was already the last one
            RunEvent.FAULT: RunPhase.RECOVERING,
            RunEvent.STOP_ASKED: RunPhase.STOPPING,
            RunEvent.GAVE_UP: RunPhase.FAILED,
        },
        RunPhase.RUNNING: {
            RunEvent.FINISHED: RunPhase.DONE,
            RunEvent.FAULT: RunPhase.RECOVERING,
            RunEvent.RESTART: RunPhase.WAITING,  # planned: a drained node, another size
            RunEvent.STOP_ASKED: RunPhase.STOPPING,
            RunEvent.GAVE_UP: RunPhase.FAILED,
        },
        RunPhase.RECOVERING: {
            RunEvent.STEPPING: RunPhase.RUNNING,
            RunEvent.REPLAY_BEGUN: RunPhase.REPLAYING,
            RunEvent.RESTART: RunPhase.WAITING,
            RunEvent.FAULT: RunPhase.RECOVERING,
            RunEvent.STOP_ASKED: RunPhase.STOPPING,
            RunEvent.LADDER_USED_UP: RunPhase.EXHAUSTED,
            RunEvent.GAVE_UP: RunPhase.FAILED,
        },
        RunPhase.REPLAYING: {
            RunEvent.REPLAY_ENDED: RunPhase.RUNNING,
            RunEvent.FINISHED: RunPhase.DONE,  # the run's last step lies inside the window
            RunEvent.FAULT: RunPhase.RECOVERING,
            RunEvent.RESTART: RunPhase.WAITING,
            RunEvent.STOP_ASKED: RunPhase.STOPPING,
            RunEvent.GAVE_UP: RunPhase.FAILED,
        },
        RunPhase.STOPPING: {
            RunEvent.ENDED: RunPhase.STOPPED,
            RunEvent.FAULT: RunPhase.STOPPING,
            RunEvent.STOP_ASKED: RunPhase.STOPPING,  # asking twice changes nothing
            RunEvent.FINISHED: RunPhase.DONE,  # the last step was quicker than the request
            RunEvent.GAVE_UP: RunPhase.FAILED,
        },
        RunPhase.DONE: {},
        RunPhase.STOPPED: {},
        RunPhase.EXHAUSTED: {},
        RunPhase.FAILED: {},
    }
)


def advance(phase: RunPhase, event: RunEvent) -> RunPhase:
    """Return the phase that follows.

    Raises:
        InternalError: The event cannot happen in this phase; the caller's phase stays what it was.
    """
    following = TRANSITIONS[phase].get(event)
    if following is None:
        legal = ", ".join(TRANSITIONS[phase]) or "nothing, the run is over"
        raise InternalError(
            f"the event '{event}' cannot happen in the phase '{phase}'; possible there: {legal}",
            todo="This is a bug of Stormsail: please report it with the run's journal (`stormsail events RUN --json`).",
        )
    return following


def diagram() -> str:
    """Draw the table as a Mermaid state diagram, one line per transition, in the table's order."""
    lines = ["stateDiagram-v2", f"    [*] --> {START}"]
    lines += [
        f"    {phase} --> {following}: {event}"
        for phase, row in TRANSITIONS.items()
        for event, following in row.items()
    ]
    lines += [f"    {phase} --> [*]" for phase in RunPhase if phase.terminal]
    return "\n".join(lines)
