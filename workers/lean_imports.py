"""A worker imports what it uses: seconds less at every start, and starts are most of what a repair takes.

`torch.optim` and DeepSpeed import torch's compiler (`torch._dynamo` with sympy and half of `torch._inductor`) only to
tell it which functions to leave alone, and DeepSpeed imports MLflow for its autotuner. A run that compiles nothing
needs none of it; one that does gets it all at the first use. Found with torch 2.13.0 and DeepSpeed 0.19.8:
`tests/workers/test_lean_imports.py` fails when a version begins to import them in another way.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_COMPILER = "torch._dynamo"


def defer_compiler() -> None:
    """From now on, `torch._dynamo` is loaded when something is compiled; call it before the first optimizer is made."""
    if _COMPILER not in sys.modules:
        sys.modules[_COMPILER] = _Deferred(_COMPILER)


class _Deferred(ModuleType):
    """`torch._dynamo` before it is loaded: what eager code asks of it has an answer, and all else loads it."""

    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    @staticmethod
    def graph_break(*_: object, **__: object) -> None:
        """Nothing is being traced."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *options: Any, **named: Any) -> Any:
        """Mark a function as one to leave alone, from the moment when there is a compiler to leave it alone."""
        if function is None:
            return lambda decorated: _Deferred.disable(decorated, *options, **named)
        marked = functools.cache(lambda: sys.modules[_COMPILER].disable(function, *options, **named))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (function if _is_deferred() else marked())(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        if _is_deferred():
            del sys.modules[_COMPILER]
            importlib.import_module(_COMPILER)
            set_deterministic(deterministic=torch.are_deterministic_algorithms_enabled())
        return getattr(sys.modules[_COMPILER], name)


def _is_deferred() -> bool:
    return isinstance(sys.modules.get(_COMPILER), _Deferred)


def set_deterministic(*, deterministic: bool) -> None:
    """`torch.use_deterministic_algorithms`; the compiler, which it imports to tell it, hears of it when it is loaded."""
    if _is_deferred():
        torch.set_deterministic_debug_mode("error" if deterministic else "default")
    else:
        torch.use_deterministic_algorithms(deterministic)


def import_deepspeed() -> None:
    """Import DeepSpeed as if MLflow was not installed, unless it was imported before."""
    absent = "mlflow" not in sys.modules
    if absent:
        sys.modules["mlflow"] = None  # type: ignore[assignment]  # Python's way to say "not installed"
    try:
        import deepspeed  # noqa: F401 - importing it is the purpose
    finally:
        if absent:
            del sys.modules["mlflow"]


@contextmanager
def kernels_at_first_use() -> Iterator[None]:
    """Inside, what DeepSpeed compiles as it is imported is compiled when it is first called.

    It asks of every optimizer whether it is a Muon, and imports Muon's kernels to ask.
    """
    from deepspeed.runtime import compiler

    compile_now = compiler.compile
    compiler.compile = lambda: _compiled
    try:
        yield
    finally:
        compiler.compile = compile_now


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled = functools.cache(lambda: torch.compile(function))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled()(*args, **kwargs)

    return call
