"""What the compiling process leaves in the folder; how it is started and ended is tested in `test_extension_build.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormsail.workers.extension_compile import BUILD_PREFIX
from stormsail.workers.extensions import CPU_BUILDERS, read_built


@pytest.mark.timeout(1000)
def test_a_finished_folder_holds_the_libraries_that_its_marker_names_and_no_lock(built_extensions: Path) -> None:
    built = read_built(built_extensions)
    assert built is not None
    assert not list(built_extensions.glob(f"{BUILD_PREFIX}*"))
    assert not list(built_extensions.glob("*/lock"))
    if built.accelerator == "cpu":
        assert set(built.libraries) == set(CPU_BUILDERS.values())
    else:
        assert built.libraries == {}
