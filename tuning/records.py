"""Where a sweep keeps what it must not lose: its plan, the cells proposed, one object per finished trial, and checkpoints.

Nothing of Ray Tune's own bookkeeping is ever read back: a sweep that goes on leaves out the trials that have a record here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from stormsail.platform import exact_json
from stormsail.platform.errors import ConfigError, ObjectMissingError, PreconditionFailedError, StorageError
from stormsail.platform.storage.store import ObjectStore
from stormsail.tuning.objective import Measured
from stormsail.tuning.settings import SweepConfig
from stormsail.tuning.space import Cell

T = TypeVar("T")

_PLAN = "plan.json"
_TRIALS = "trials/"
_CHECKPOINTS = "checkpoints/"
_PROPOSED = "proposed/"

_MEASURED = TypeAdapter(Measured)
_CELLS = TypeAdapter(list[Cell])


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep was started with.

    Attributes:
        sweep: Its configuration, as JSON values.
        target: The target's configuration, as `dump_config` writes it.
        target_file: Absolute path of the target's YAML.
        started_s: When, in seconds since the epoch.
        import_paths: Where the user's own modules are looked for.
    """

    sweep: dict[str, object]
    target: str
    target_file: str
    started_s: float
    import_paths: tuple[str, ...] = field(default=())


_PLAN_READER = TypeAdapter(Plan)


class SweepRecords:
    """Reads and writes one sweep's objects.

    Args:
        store: The sweep's own place.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def plan(self) -> Plan | None:
        """The plan, or None before the sweep was first started."""
        try:
            body = self.store.get(_PLAN)
        except ObjectMissingError:
            return None
        return self._read(_PLAN_READER, body, _PLAN)

    def put_plan(self, plan: Plan) -> None:
        """Keep the plan; it never changes afterwards."""
        self.store.put(_PLAN, exact_json.dumps(asdict(plan)), if_none_match=True)

    def put_trial(self, measured: Measured) -> bool:
        """Keep a trial's result. The first one stays; returns whether this was it."""
        try:
            self.store.put(trial_key(measured.trial.id), exact_json.dumps(asdict(measured)), if_none_match=True)
        except PreconditionFailedError:
            return False
        return True

    def has_trial(self, trial_id: str) -> bool:
        """Whether the trial has a result."""
        try:
            self.store.head(trial_key(trial_id))
        except ObjectMissingError:
            return False
        return True

    def trials(self) -> dict[str, Measured]:
        """All results, by trial id."""
        found = {}
        for info in self.store.list(_TRIALS):
            one = self._read(_MEASURED, self.store.get(info.key), info.key)
            found[one.trial.id] = one
        return found

    def count(self) -> int:
        """How many results there are."""
        return sum(1 for _ in self.store.list(_TRIALS))

    def checkpoint(self, trial_id: str) -> bytes | None:
        """The newest checkpoint of an unfinished trial, or None."""
        try:
            return self.store.get(f"{_CHECKPOINTS}{trial_id}")
        except ObjectMissingError:
            return None

    def put_checkpoint(self, trial_id: str, body: bytes) -> None:
        """Keep a trial's state, instead of its last one."""
        self.store.put(f"{_CHECKPOINTS}{trial_id}", body)

    def drop_checkpoint(self, trial_id: str) -> None:
        """Forget a trial's state; its result has been kept."""
        self.store.delete(f"{_CHECKPOINTS}{trial_id}")

    def proposed(self) -> list[list[Cell]]:
        """The batches of cells that the search has proposed so far."""
        return [self._read(_CELLS, self.store.get(info.key), info.key) for info in self.store.list(_PROPOSED)]

    def put_proposed(self, number: int, cells: list[Cell]) -> None:
        """Keep a batch of proposed cells before any of them is run, so that a resumed sweep runs the same."""
        body = exact_json.dumps([asdict(cell) for cell in cells])
        self.store.put(f"{_PROPOSED}{number:06d}.json", body, if_none_match=True)

    def _read(self, reader: TypeAdapter[T], body: bytes, key: str) -> T:
        try:
            return reader.validate_python(exact_json.loads(body))
        except ValueError as error:
            raise StorageError("A record of the sweep is damaged", where=f"{self.store.url}/{key}") from error


def trial_key(trial_id: str) -> str:
    """The object of a trial's result."""
    return f"{_TRIALS}{trial_id}.json"


def sweep_of(plan: Plan, where: str) -> SweepConfig:
    """The configuration of a plan.

    Raises:
        ConfigError: Another version of Stormsail wrote it, and this one does not know its keys.
    """
    try:
        return SweepConfig.model_validate(plan.sweep)
    except ValidationError as error:
        raise ConfigError(
            "the sweep was started by another version of Stormsail, which knew other keys",
            where=where,
            todo="look at it with that version, or begin anew: `--fresh` (the old sweep is kept)",
        ) from error
