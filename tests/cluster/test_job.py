"""A cluster that is not our own, with token authentication: `ray job submit`, and nodes that lack something."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.machine import Config, Ended, Machine, data, kinds, of_kind, wait_for

from stormsail.supervisor.reading import ReadRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent

# Stands for a node whose image lacks the package, whichever way it is installed here.
HIDE_STORMSAIL = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "stormsail":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@dataclass
class Cluster:
    """A Ray head that was started by hand.

    Attributes:
        address: For drivers and other nodes.
        dashboard: For `ray job`.
        variables: Environment of everything that talks to it.
        folder: Ray's session files.
    """

    address: str
    dashboard: str
    variables: dict[str, str]
    folder: Path

    def submit(self, *words: str, expect: int, cwd: Path = ROOT) -> Ended:
        """`ray job submit --working-dir . -- WORDS`, followed to its end."""
        done = subprocess.run(
            [str(PROGRAMS / "ray"), "job", "submit", "--address", self.dashboard, "--working-dir", ".", "--", *words],
            cwd=cwd,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=700.0,
            check=False,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
        assert ended.code == expect, ended
        return ended


@pytest.fixture(scope="module")
def cluster(machine: Machine) -> Iterator[Cluster]:
    # Ray puts sockets below it, whose paths may not be long.
    folder = Path(tempfile.mkdtemp(prefix="stormsail-ray-", dir="/tmp"))
    port, dashboard, agent, agent_grpc, metrics = free_ports(5)
    variables = machine.variables(
        {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}",
        }
    )
    options = {
        "port": port,
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,
        "dashboard-agent-grpc-port": agent_grpc,
        "metrics-export-port": metrics,
        "node-ip-address": "127.0.0.1",
        "dashboard-host": "127.0.0.1",
        "temp-dir": folder,
        "num-cpus": 2,
        "object-store-memory": 150_000_000,
    }
    made = Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", variables, folder)
    try:
        head = ["--head", *(f"--{key}={value}" for key, value in options.items())]
        with ray_node(head, variables, folder, ports=(port, dashboard, agent)):
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ray_node(options: list[str], variables: dict[str, str], folder: Path, *, ports: tuple[int, ...]) -> Iterator[None]:
    """A node, in the foreground of a session of its own, so that it can be ended as a whole and alone."""
    command = [str(PROGRAMS / "ray"), "start", "--block", "--disable-usage-stats", *options]
    said = folder / f"start-{secrets.token_hex(4)}.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def ready() -> bool:
        assert process.poll() is None, said.read_text(encoding="utf-8")
        return all(listens(port) for port in ports)

    try:
        wait_for(ready, bool, within_s=300.0)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:  # on a busy machine Ray needs long to say goodbye
            process.kill()
            process.wait(20.0)
        finally:
            end_group(process.pid)


def end_group(leader: int) -> None:
    """Kill what is left of a process group that this test started."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def submitted(cluster: Cluster, base: Config) -> Ended:
    """The quickstart, from a checkout, made as small as the other runs here, and with one kill."""
    drill = {"twin_step": None, "faults": [{"kind": "kill", "step": 36, "rank": 1}]}
    wanted = {"name": "submitted", **base, "drill": drill}
    words = [word for key, value in flat(wanted) for word in ("--set", f"{key}={json.dumps(value)}")]
    return cluster.submit("stormsail", "train", "examples/quickstart.yaml", *words, expect=0)


def flat(config: Config) -> Iterator[tuple[str, object]]:
    """Keys as `--set` wants them; a section's own mappings, such as `model.args`, stay whole."""
    for section, held in config.items():
        if isinstance(held, dict):
            yield from ((f"{section}.{key}", value) for key, value in held.items())
        else:
            yield section, held


def test_a_submitted_job_heals_and_ends_with_the_bits_of_a_local_run(
    submitted: Ended, machine: Machine, straight: ReadRun
) -> None:
    assert "demo: recovered 1 of 1" in submitted.out
    digests = [data(of_kind(run.events, "run.finished")[0])["digest"] for run in (machine.read("submitted"), straight)]
    assert digests[0] == digests[1]


def test_a_submitted_job_shows_and_keeps_its_token_nowhere(
    submitted: Ended, cluster: Cluster, machine: Machine
) -> None:
    token = cluster.variables["RAY_AUTH_TOKEN"].encode()
    assert token not in (submitted.out + submitted.err).encode()
    kept = [path for path in (machine.home / "runs" / "submitted").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if token in path.read_bytes()]


def test_a_wrong_token_is_told_from_a_cluster_that_is_not_there(machine: Machine, cluster: Cluster) -> None:
    config = machine.write("stranger", cluster={"address": cluster.address})
    ended = machine.run(
        "train", config, expect=75, env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    )
    assert "cannot join the Ray cluster" in ended.err
    assert "RAY_AUTH_TOKEN" in ended.err
    assert "Traceback" not in ended.err


def test_no_room_on_a_joined_cluster(machine: Machine, cluster: Cluster) -> None:
    config = machine.write("too-many", cluster={"address": cluster.address, "workers": 64, "wait_s": 5})
    ended = machine.run("train", config, expect=75, env=cluster.variables)
    assert "waiting for free resources until " in ended.out
    assert "CPU 64 wanted, 2 free" in ended.err
    assert "attempt.started" not in kinds(machine.read("too-many").events)


@pytest.fixture(scope="module")
def bare(machine: Machine, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDE_STORMSAIL, encoding="utf-8")
    agent, agent_grpc, metrics = free_ports(3)
    options = [
        f"--address={cluster.address}",
        f"--dashboard-agent-listen-port={agent}",
        f"--dashboard-agent-grpc-port={agent_grpc}",
        f"--metrics-export-port={metrics}",
        "--num-cpus=2",
        "--object-store-memory=100000000",
    ]
    words = (
        "stormsail", "train", "examples/quickstart.yaml",
        "--set", "name=bare", "--set", f"storage=file://{folder}/store", "--set", f"cluster.shared_path={folder}",
        "--set", "tracking.uri=null",
    )  # fmt: skip
    hidden = cluster.variables | {"PYTHONPATH": str(folder)}
    with ray_node(options, hidden, cluster.folder, ports=(agent,)):
        return cluster.submit(*words, expect=1)


def test_a_node_without_the_package_stops_the_job_at_once(bare: Ended) -> None:
    assert "run started" not in bare.out
    assert "Traceback" not in bare.out


def test_a_node_without_the_package_says_which_node_and_how_to_add_it(bare: Ended) -> None:
    assert "no module 'stormsail'" in bare.out
    assert re.search(r"node \d+\.\d+\.\d+\.\d+", bare.out)
    assert "install the same stormsail wheel in the image of every node" in bare.out
    assert "--runtime-env-json" in bare.out
