"""What a supervisor is started with (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from stormsail.platform.storage.store import StoreAddress


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a supervisor is started with; the rest it finds in the journal.

    Attributes:
        actor: Its own actor name.
        name: The run's name.
        config: Configuration as dumped JSON.
        store: The run's store.
        folder: The run's local folder: logs, the journal's local file, Ray's own files.
        ray_path: Where Ray keeps its files; shared by all nodes if there are several.
        import_paths: Folders that the user's modules are imported from.
        version: Version of the package, which every node must have.
        owner_id: Names this claim on the run; a supervisor that Ray restarts is the same owner.
        changes: What the configuration changed against the stored one, for the journal.
        stop_step: Step to end at instead of `train.steps`, or None.
        take_over: Whether an expired lease may be taken over.
        env: Variables for the run's processes that Ray's own environment does not hold.
    """

    actor: str
    name: str
    config: str
    store: StoreAddress
    folder: str
    ray_path: str
    import_paths: tuple[str, ...]
    version: str
    owner_id: str
    changes: tuple[str, ...] = ()
    stop_step: int | None = None
    take_over: bool = False
    env: dict[str, str] = field(default_factory=dict)
