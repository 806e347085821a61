"""DeepSpeed's C++ extensions, compiled beforehand: which folder holds them, and how a worker loads them.

DeepSpeed compiles what it lacks at first use, under a lock *file*: a process that is killed meanwhile
leaves the file, and everyone after it waits for ever without a word. So Stormsail compiles before the
first attempt (`extension_build`), in a folder of its own for each build environment, and workers load
the finished libraries themselves: they neither compile nor touch that lock.

Nothing here imports torch or DeepSpeed unless a library is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stormsail.platform.errors import ClusterError
from stormsail.platform.home import Home

# Builders that DeepSpeed 0.19 uses unasked where there is no GPU (`deepspeed.comm` makes a process group with them),
# and the operation that each of them compiles.
CPU_BUILDERS = {"ShareMemCommBuilder": "deepspeed_shm_comm"}
_PACKAGES = ("torch", "deepspeed")
_MARKER = "done.json"


@dataclass(frozen=True, slots=True)
class Built:
    """What a folder holds, as its marker says.

    Attributes:
        accelerator: DeepSpeed's name of the accelerator that was found ("cpu", "cuda", ...).
        libraries: Name of each operation and its library, relative to the folder; empty where nothing is needed.
    """

    accelerator: str
    libraries: dict[str, str]


def extension_folder(home: Home) -> Path:
    """The folder for this build environment: another Python, torch, DeepSpeed, compiler or processor gets another one.

    Where there is no compiler (a slim image), a finished folder that fits in all other respects is taken.
    """
    facts = [
        platform.python_implementation(),
        platform.python_version(),
        *(f"{name} {_version(name)}" for name in _PACKAGES),
        platform.machine(),
        _cpu_features(),
        os.environ.get("DS_ACCELERATOR", ""),
        "gpu" if Path("/dev/nvidiactl").exists() else "no gpu",
    ]
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    version = _compiler_version()
    if version is None:
        finished = [folder for folder in sorted(home.extensions.glob(f"{name}-*")) if read_built(folder) is not None]
        if finished:
            return finished[0]
    return home.extensions / f"{name}-{hashlib.sha256((version or '').encode()).hexdigest()[:8]}"


def set_extension_environment(folder: Path) -> None:
    """Let torch compile and look for extensions in `folder`, in this process and in those it starts."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    os.environ["MAX_JOBS"] = str(os.cpu_count() or 1)
    os.environ["PATH"] = path_with_tools()


def path_with_tools() -> str:
    """PATH with this Python's own folder in front: `ninja` lives there, and an environment need not be activated."""
    own = str(Path(sys.executable).parent)
    present = os.environ.get("PATH", os.defpath)
    return present if own in present.split(os.pathsep) else os.pathsep.join((own, present))


def compiler() -> str:
    """The C++ compiler that torch will call."""
    return os.environ.get("CXX", "c++")


def read_built(folder: Path) -> Built | None:
    """What `folder` holds, or None if it was never finished or has lost a library."""
    try:
        record = json.loads((folder / _MARKER).read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    libraries = {str(name): str(path) for name, path in record["libraries"].items()}
    if not all((folder / path).is_file() for path in libraries.values()):
        return None
    return Built(accelerator=str(record["accelerator"]), libraries=libraries)


def write_built(folder: Path, built: Built) -> None:
    """Declare `folder` finished; the last thing that a build does."""
    part = folder / f"{_MARKER}.{os.getpid()}"
    part.write_text(json.dumps({"accelerator": built.accelerator, "libraries": built.libraries}), encoding="utf-8")
    part.replace(folder / _MARKER)


def load_extensions(folder: Path) -> tuple[str, ...]:
    """Load the finished libraries into this process and hand them to DeepSpeed, which then compiles nothing.

    Call it in a worker after torch is imported and before DeepSpeed makes a process group. Takes no lock and
    no compiler. A second call does nothing.

    Returns:
        Names of the operations that DeepSpeed now has.

    Raises:
        ClusterError: The folder was not built, or a library does not fit this process.
    """
    built = read_built(folder)
    if built is None:
        raise ClusterError(
            "DeepSpeed's C++ extensions are not built in this folder.",
            where=str(folder),
            todo="They are built before the first attempt; in an image, run `python -m stormsail.workers.extension_build`.",
        )
    from deepspeed.ops.op_builder.builder import OpBuilder

    for name, path in built.libraries.items():
        if name not in OpBuilder._loaded_ops:  # noqa: SLF001 - DeepSpeed asks this table before it compiles
            OpBuilder._loaded_ops[name] = _import_library(name, folder / path)  # noqa: SLF001 - as above
    return tuple(built.libraries)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise ClusterError(
            f"The Python package {package} is not installed here.",
            where=sys.prefix,
            todo="Install Stormsail with its dependencies into the environment that runs the workers.",
        ) from error


def _compiler_version() -> str | None:
    path = shutil.which(compiler())
    if path is None:
        return None
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's own compiler
    return answer.stdout.partition("\n")[0]


def _cpu_features() -> str:
    """The processor's instruction sets where the kernel lists them; libraries may be compiled for exactly these."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _import_library(name: str, path: Path) -> object:
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ClusterError(
            "This is no Python extension library.", where=str(path), todo="Remove its folder; it is built again."
        )
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ClusterError(
            f"The compiled extension cannot be loaded: {error}",
            where=str(path),
            todo="Remove its folder; it is built again.",
        ) from error
    return module
