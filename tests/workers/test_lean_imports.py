"""What a start leaves out, each in a process of its own, because an import cannot be taken back."""

from __future__ import annotations

import json
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


LIKE_TORCH_ITSELF = {
    "imports that look at all modules": """
import torch.distributed.tensor, torch.distributed.fsdp
torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(3))
""",
    "a part is the first use": """
import torch._dynamo.config, torch._dynamo.decorators, torch._dynamo.exc as errors
torch._dynamo.config.suppress_errors = True
from torch._dynamo import convert_frame
assert convert_frame.config is torch._dynamo.config and convert_frame.config.suppress_errors
assert convert_frame.exc is errors
""",
    "modules and classes stay what they are": """
block = torch.compiler.disable(torch.nn.Linear(2, 2))
assert len(list(block.parameters())) == 2
assert isinstance(torch.compiler.disable(torch.nn.ReLU), type)
""",
    "a warning stays a warning": """
torch.set_deterministic_debug_mode("warn")
torch.compile(torch.nn.Linear(3, 3), backend="eager")(torch.ones(3))
assert torch.get_deterministic_debug_mode() == 1
""",
    "an object that was held before": """
import torch._dynamo as held
graphs = []
def backend(graph, _inputs):
    graphs.append(graph)
    return graph.forward
@torch.compile(backend=backend)
def breaks(x):
    y = x + 1
    held.graph_break()
    return y * 2
breaks(torch.ones(1))
assert len(graphs) == 2
held.told = 5
assert sys.modules["torch._dynamo"].told == 5
""",
    "a failure may be followed by a success": """
class Full:
    def find_spec(self, name, *_):
        if name == "torch._dynamo.eval_frame":
            raise MemoryError(name)
sys.meta_path.insert(0, Full())
for _ in range(2):
    try:
        torch.compile(torch.nn.Linear(3, 3), backend="eager")
    except MemoryError:
        continue
    raise AssertionError("it was imported without one of its parts")
""",
    "another thread trains meanwhile": """
import threading
layer = torch.nn.Linear(3, 3)
optimizer = torch.optim.AdamW(layer.parameters())
begun, over, errors = threading.Event(), threading.Event(), []
def train():
    try:
        while not over.is_set():
            layer(torch.ones(3)).sum().backward(); optimizer.step(); optimizer.zero_grad(); begun.set()
    except BaseException as error:
        errors.append(error)
thread = threading.Thread(target=train)
thread.start(); begun.wait()
torch.compile(torch.nn.Linear(3, 3), backend="eager")(torch.ones(3))
over.set(); thread.join()
assert not errors, errors
""",
}


IN_FORKS = """
import json, os, traceback
failed = []
for name, code in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        try:
            exec(code, {"sys": sys, "torch": torch})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
assert not failed, failed
"""


def test_who_meets_the_stand_in_finds_what_torch_has() -> None:
    run(IN_FORKS, json.dumps(LIKE_TORCH_ITSELF))


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
