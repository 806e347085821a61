"""What a start leaves out, each in a process of its own, because an import cannot be taken back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(code: str, *words: str | Path) -> None:
    """Run code in a fresh interpreter that has made the usual start."""
    start = "import sys, torch\nfrom stormsail.workers import lean_imports\nlean_imports.defer_compiler()\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr


NOTHING_COMPILED = """
absent = {"torch._inductor", "sympy", "mlflow"} & sys.modules.keys()
assert not absent, absent
assert type(sys.modules["torch._dynamo"]).__name__ == "_Deferred"
"""

AN_OPTIMIZER = """
layer = torch.nn.Linear(3, 3)
optimizer = torch.optim.AdamW(layer.parameters())
def step(module):
    module(torch.ones(3)).sum().backward(); optimizer.step(); optimizer.zero_grad()
step(layer)
"""


def test_engines_of_both_precisions_train_without_the_compiler(built_extensions: Path, tmp_path: Path) -> None:
    run(
        """
from pathlib import Path
import tests.support.one_rank as one_rank
lean_imports.set_deterministic(deterministic=True)
with one_rank.world_of_one(Path(sys.argv[1]), Path(sys.argv[2])):
    for precision in ("bf16", "fp32"):
        engine = one_rank.build(one_rank.tiny_config(), precision)
        one_rank.train(engine, range(2))
        engine.destroy()
"""
        + NOTHING_COMPILED,
        tmp_path,
        built_extensions,
    )


MARKED_BEFORE = """
@torch.compiler.disable
def told(x):
    return torch.compiler.is_compiling()
@torch.compiler.disable(recursive=False)
def told_too(x):
    return torch.compiler.is_compiling()
assert not told(1)
"""

COMPILED = """
step(compiled)
@torch.compile(backend="eager")
def asks(x):
    return x + 1, torch.compiler.is_compiling(), told(x), told_too(x)
assert asks(torch.ones(1))[1:] == (True, False, False), "marked functions are left alone"
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.__file__
import torch._inductor.config
assert torch._inductor.config.deterministic, "the compiler knows what was set before"
assert torch.are_deterministic_algorithms_enabled()
"""


@pytest.mark.parametrize(
    "first_use",
    [
        "compiled = torch.compile(layer, backend='eager')",
        "import torch._dynamo.config; compiled = torch.compile(layer, backend='eager')",
    ],
)
def test_an_optimizer_steps_without_the_compiler_and_who_compiles_gets_it(first_use: str) -> None:
    start = "lean_imports.set_deterministic(deterministic=True)\n" + MARKED_BEFORE + AN_OPTIMIZER
    run(start + NOTHING_COMPILED + first_use + COMPILED)


def test_a_compiler_that_is_there_stays_what_it_is() -> None:
    code = (
        "import torch, torch._dynamo; before = torch._dynamo; from stormsail.workers import lean_imports as lean; "
        "lean.defer_compiler(); assert torch._dynamo is before; lean.set_deterministic(deterministic=True); "
        "import torch._inductor.config as config; assert config.deterministic"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, timeout=400)


def test_deepspeed_leaves_mlflow_alone_and_compiles_muon_s_kernels_at_their_first_call() -> None:
    run(
        """
lean_imports.import_deepspeed()
from deepspeed.autotuning import autotuner
assert not autotuner.has_mlflow
with lean_imports.kernels_at_first_use():
    from deepspeed.runtime.zero.muon import original_muon as muon
"""
        + NOTHING_COMPILED
        + """
import mlflow
from deepspeed.runtime import compiler
assert compiler.compile() is torch.compile
seen = []
torch.compile = lambda function: seen.append(function.__name__) or function
out = muon.zeropower_via_newtonschulz5(torch.eye(4), 5)
assert seen == ["zeropower_via_newtonschulz5"] and out.shape == (4, 4)
"""
    )
