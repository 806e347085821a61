"""The process that compiles DeepSpeed's C++ extensions: `python -m stormsail.workers.extension_compile FOLDER SECONDS`.

`extension_build` starts it, in a session of its own, and hands it the open lock of the folder: should that
parent be killed, the lock stays held until this process ends, so that nobody compiles beside it, and its
work is not lost. It compiles in a folder that only it knows and moves the result into place when whole.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from stormsail.workers.extensions import CPU_BUILDERS, Built, set_extension_environment, write_built

BUILD_PREFIX = ".build-"


def main(folder: Path, limit_s: float) -> None:
    """Compile what this machine needs into `folder`; the process group is killed after `limit_s` seconds."""
    signal.signal(signal.SIGALRM, lambda *_: _give_up(limit_s))
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    for left in folder.glob(f"{BUILD_PREFIX}*"):
        shutil.rmtree(left)
    build = Path(tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=folder))
    set_extension_environment(build)
    built = _compile(build)
    for name in built.libraries:
        shutil.rmtree(folder / name, ignore_errors=True)
        (build / name).rename(folder / name)
    write_built(folder, built)
    shutil.rmtree(build)


def _compile(build: Path) -> Built:
    from stormsail.workers import lean_imports

    lean_imports.import_deepspeed()
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    device = str(accelerator._name)  # noqa: SLF001 - DeepSpeed itself compares this name; there is no public one
    libraries: dict[str, str] = {}
    if device == "cpu":
        for builder_name in CPU_BUILDERS:
            builder = accelerator.create_op_builder(builder_name)
            if builder is None or not builder.is_compatible():
                print(f"{builder_name}: not for this system, DeepSpeed does without it")  # noqa: T201 - the build log
                continue
            module = builder.load(verbose=True)
            libraries[str(builder.NAME)] = str(Path(module.__file__).relative_to(build))
    return Built(accelerator=device, libraries=libraries)


def _give_up(limit_s: float) -> NoReturn:
    print(f"error: not finished after {limit_s:.0f} s", flush=True)  # noqa: T201 - the build log
    os.killpg(0, signal.SIGKILL)
    raise AssertionError  # the line above killed this process


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
