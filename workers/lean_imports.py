"""A worker imports what it uses: seconds less at every start, and starts are most of what a repair takes.

`torch.optim` and DeepSpeed import torch's compiler (`torch._dynamo` with sympy and half of `torch._inductor`) only to
tell it which functions to leave alone, and DeepSpeed imports MLflow for its autotuner. A run that compiles nothing
needs none of it; one that does gets it all at the first use. Found with torch 2.13.0 and DeepSpeed 0.19.8:
`tests/workers/test_lean_imports.py` fails when a version begins to import them in another way.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import torch

_COMPILER = "torch._dynamo"


def defer_compiler() -> None:
    """From now on, `torch._dynamo` is loaded when something is compiled; call it before the first optimizer is made."""
    if _COMPILER not in sys.modules:
        spec = importlib.util.find_spec(_COMPILER)
        if spec is not None:
            sys.meta_path.insert(0, _Parts())
            sys.modules[_COMPILER] = _Deferred(spec)


class _Deferred(ModuleType):
    """`torch._dynamo` before it is loaded: what eager code asks of it has an answer, and all else loads it.

    Who still holds this object afterwards finds in it what the real module has.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(_COMPILER)
        # Whoever walks over all modules asks for these, and is no reason to load anything.
        vars(self).update(__spec__=spec, __file__=spec.origin, __path__=spec.submodule_search_locations)
        vars(self)["trace_rules"] = _TraceRules()

    @staticmethod
    def graph_break(*_: object, **__: object) -> None:
        """Nothing is being traced."""

    @staticmethod
    def disable(function: Any = None, *options: Any, **named: Any) -> Any:
        """Mark a function as one to leave alone, from the moment when there is a compiler to leave it alone."""
        if function is None:
            return lambda decorated: _Deferred.disable(decorated, *options, **named)
        if not isinstance(function, FunctionType):  # what becomes of a class or a module, the compiler must say
            return _load().disable(function, *options, **named)
        marked = functools.cache(lambda: _load().disable(function, *options, **named))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (function if _is_deferred() else marked())(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_load(), name, value)
        vars(self)[name] = value


class _TraceRules:
    """`torch._dynamo.trace_rules` before it is loaded."""

    @staticmethod
    def clear_lru_cache() -> None:
        """Nothing was traced, so nothing is remembered."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_load().trace_rules, name)


class _Parts(MetaPathFinder):
    """Finds the parts of `torch._dynamo` that came with it: `import torch._dynamo.config` may be its first use."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """A part that was loaded with the whole; None for all others, which are found in the usual way."""
        if not name.startswith(f"{_COMPILER}.") or not _is_deferred():
            return None
        _load()
        part = sys.modules.pop(name, None)  # a part that is there would be run again, not loaded by what is given here
        return None if part is None else ModuleSpec(name, _Loaded(part))


class _Loaded(Loader):
    """Hands out a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, vars(module).get("__spec__")

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """The module; it gets another spec than its own for a moment."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already."""
        with contextlib.suppress(AttributeError):  # torch's modules of settings take no other names
            module.__spec__ = self._spec


def _is_deferred() -> bool:
    return isinstance(sys.modules.get(_COMPILER), _Deferred)


def _load() -> ModuleType:
    """The real module; a thread that comes while another one loads it waits for that."""
    stand_in = sys.modules.get(_COMPILER)
    if not isinstance(stand_in, _Deferred):
        return importlib.import_module(_COMPILER)
    with contextlib.suppress(KeyError):  # another thread was quicker
        del sys.modules[_COMPILER]
    try:
        loaded = importlib.import_module(_COMPILER)
    except BaseException:
        sys.modules.setdefault(_COMPILER, stand_in)
        raise
    vars(stand_in).update(vars(loaded))
    # It has not heard of this yet.
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=warn_only)
    return loaded


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
