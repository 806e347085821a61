"""What a run stands on: the cluster, the store with its journal, and MLflow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stormsail.platform.config.section import Positive, Seconds, Section


class ClusterSection(Section):
    """Where the workers run."""

    workers: Positive = Field(2, description="worker processes (ranks)")
    cpus_per_worker: Annotated[float, Field(gt=0.0)] = Field(1.0, description="CPUs reserved for one worker")
    accelerator: Literal["auto", "cpu", "gpu"] = Field("auto", description="auto takes GPUs where the cluster has them")
    address: str | None = Field(None, description="Ray address; null: RAY_ADDRESS, or else a local cluster of our own")
    wait_s: Seconds = Field(600.0, description="how long to wait for free resources")
    collective_timeout_s: Seconds = Field(
        900.0, description="limit of one collective; longer than a decision may take, and a hang with its evidence"
    )
    start_timeout_s: Seconds = Field(300.0, description="limit for a worker group to start and form its world")
    step_timeout_s: Seconds = Field(300.0, description="limit for one step before the attempt is ended")
    shared_path: str | None = Field(None, description="folder that all nodes share; needed by Ray on several nodes")


class StorageSection(Section):
    """Where the run keeps what it must not lose. In YAML a plain string stands for `url`."""

    url: Annotated[str, Field(pattern=r"^(embedded|s3://[^/\s]+(/\S*)?|file:///.+)$")] = Field(
        "embedded", description="`embedded`, `s3://bucket/prefix` or `file:///path`"
    )
    endpoint: str | None = Field(None, description="S3 endpoint; null is AWS, or AWS_ENDPOINT_URL_S3")
    region: str | None = Field(None, description="S3 region; null is the environment's")
    profile: str | None = Field(None, description="AWS profile; null is the default chain")
    checksums: Literal["when_supported", "when_required"] = Field(
        "when_supported",
        description="S3 checksum headers; some S3-like stores need `when_required`, which sends Content-MD5 in their place",
    )
    timeout_s: Seconds = Field(
        30.0, description="limit of one request, retries apart; a body has a second more for each 128 KiB"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class JournalSection(Section):
    """The run's memory of what was decided."""

    deadline_s: Seconds = Field(300.0, description="how long a new generation waits for a store that is down")


class TrackingSection(Section):
    """MLflow is a mirror that may fail; the run's own storage is the record."""

    uri: str | None = Field("sqlite", description="MLflow tracking URI; `sqlite`: a file of our own; null: off")
    experiment: str = Field("stormsail", description="MLflow experiment name")
    every_s: Seconds = Field(5.0, description="seconds between two batches sent")
