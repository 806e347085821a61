"""What `ray job submit --working-dir .` would upload stays small, by Ray's own rules."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

LIMIT_BYTES = 5_000_000

# Ray packs with its default excludes plus each folder's .gitignore and .rayignore. In a process of its own,
# because Ray's import and its pattern library warn.
PACK = """
import sys
from pathlib import Path
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
create_package(sys.argv[1], Path(sys.argv[2]), include_gitignore=True, excludes=get_runtime_env_default_excludes())
"""

UNWANTED = (
    ".venv/lib/torch.so",
    ".stormsail/store/volume.dat",
    "runs/quickstart/worker.txt",
    "examples/runs/quickstart/worker.txt",
    "shards/train.bin",
    "data/shards/train.bin",
    "mlruns/1/meta.yaml",
    "mlflow.db",
    "dist/stormsail-0.1.0.tar.gz",
    ".mypy_cache/3.11/cache.json",
    "platform/__pycache__/errors.cpython-311.pyc",
    "notes.log",
    ".git/objects/pack/a.pack",
)
WANTED = ("platform/errors.py", "examples/quickstart.yaml", "pyproject.toml", "src/stormsail/py.typed")


def test_the_package_of_this_checkout_is_small(root: Path, tmp_path: Path) -> None:
    package = pack(root, tmp_path / "package.zip")
    with zipfile.ZipFile(package) as archive:
        largest = sorted(archive.infolist(), key=lambda info: info.file_size, reverse=True)[:5]
        total = sum(info.file_size for info in archive.infolist())
    assert total < LIMIT_BYTES, [(info.filename, info.file_size) for info in largest]


def test_environments_runs_and_shards_are_left_out_and_code_is_not(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in (*UNWANTED, *WANTED):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="ascii")
    for name in (".gitignore", ".rayignore"):
        shutil.copy(root / name, tree / name)

    with zipfile.ZipFile(pack(tree, tmp_path / "package.zip")) as archive:
        shipped = {name for name in archive.namelist() if not name.endswith("/")}

    assert shipped == {*WANTED, ".gitignore", ".rayignore"}


def pack(folder: Path, package: Path) -> Path:
    command = [sys.executable, "-c", PACK, str(folder), str(package)]
    done = subprocess.run(command, cwd=package.parent, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return package
