"""The head before anybody asked for Ray; with Ray it is tested in `test_process.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stormsail.platform.home import Home
from stormsail.supervisor.host.head import RayHead
from stormsail.supervisor.host.paths import HostPaths


def test_without_ray_there_is_nothing_to_list_to_lose_or_to_stop() -> None:
    head = RayHead(HostPaths.of(Home(Path("/nowhere"))))
    head.forget_if_dead()
    head.stop()
    assert head.live_runs() == []
    assert head.address is None


def test_commands_that_call_the_host_import_neither_ray_nor_a_storage_library() -> None:
    code = (
        "import sys, stormsail.supervisor.host.client, stormsail.supervisor.host.lease\n"
        "sys.exit(str(sorted({'ray', 'torch', 'boto3', 'botocore', 'deepspeed'} & sys.modules.keys()) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""
