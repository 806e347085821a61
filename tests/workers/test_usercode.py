"""Telling the user's mistakes from ours."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import distributed, nn

from stormsail.platform.errors import ConfigError, UserCodeError
from stormsail.workers import deepspeed_private
from stormsail.workers.model import Transformer
from stormsail.workers.usercode import Blame, blame, call_user, first_cause, user_error


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a text as the user's module `theirs`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> ModuleType:
        (tmp_path / "theirs.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module("theirs")

    yield write
    sys.modules.pop("theirs", None)


def _caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the test looks at whatever it is
        return error
    raise AssertionError("nothing was raised")


def test_the_error_names_the_line_that_the_user_wrote(user_module: Callable[[str], ModuleType]) -> None:
    module = user_module("def build():\n    sizes = {}\n    return sizes['width']\n")
    with pytest.raises(UserCodeError) as caught:
        call_user("model.factory theirs:build", module.build)
    assert caught.value.what == "model.factory theirs:build raised KeyError: 'width'"
    assert caught.value.where.endswith("theirs.py:3")
    assert "return sizes['width']" in caught.value.details
    assert "usercode.py" not in caught.value.details


def test_the_line_is_the_users_even_where_a_library_raised(user_module: Callable[[str], ModuleType]) -> None:
    module = user_module("import json\ndef build():\n    return json.loads('{')\n")
    with pytest.raises(UserCodeError) as caught:
        call_user("it", module.build)
    assert caught.value.where.endswith("theirs.py:3")


def test_the_first_cause_comes_first(user_module: Callable[[str], ModuleType]) -> None:
    module = user_module(
        "def inner():\n    raise OSError('disk')\n"
        "def build():\n    try:\n        inner()\n    except OSError as e:\n        raise ValueError('no weights') from e\n"
    )
    with pytest.raises(UserCodeError) as caught:
        call_user("it", module.build)
    assert caught.value.what == "it raised OSError: disk, which led to ValueError: no weights"
    assert caught.value.where.endswith("theirs.py:2")
    assert caught.value.details.index("OSError: disk") < caught.value.details.index("ValueError: no weights")


def test_an_exit_from_user_code_is_an_error_too(user_module: Callable[[str], ModuleType]) -> None:
    module = user_module("def build():\n    raise SystemExit(0)\n")
    with pytest.raises(UserCodeError, match="raised SystemExit: 0"):
        call_user("it", module.build)


def test_our_own_errors_pass_through_unchanged() -> None:
    def build() -> None:
        raise ConfigError("a shard is missing")

    with pytest.raises(ConfigError, match="shard is missing"):
        call_user("it", build)


def test_a_context_that_was_hidden_on_purpose_is_not_the_cause() -> None:
    def build() -> None:
        try:
            int("hidden")
        except ValueError:
            raise TypeError("shown") from None

    assert str(first_cause(_caught(build))) == "shown"


def test_the_details_survive_the_way_between_processes() -> None:
    error = user_error(_caught(lambda: int("five")), "it")
    again = pickle.loads(pickle.dumps(error))
    assert (again.details, again.where, again.what) == (error.details, error.where, error.what)


def test_a_wrong_shape_inside_the_users_layers_is_the_users() -> None:
    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x)
            return out

    assert blame(_caught(lambda: Theirs()(torch.ones(2, 5)))) is Blame.USER


def test_a_lost_peer_below_the_users_code_is_not_the_users(tmp_path: Path) -> None:
    class Theirs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nobody_comes = timedelta(milliseconds=200)
            distributed.init_process_group(
                "gloo", f"file://{tmp_path}/meet", timeout=nobody_comes, rank=0, world_size=2
            )
            return x

    error = _caught(lambda: Theirs()(torch.ones(2)))
    assert not distributed.is_initialized()
    assert blame(error) is Blame.PEERS


@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own
def test_a_lost_peer_below_a_collective_that_we_time_is_not_our_fault() -> None:
    import deepspeed

    clock = deepspeed_private.CommClock()
    broken = SimpleNamespace(wait=partial(os.stat, "/no/such/connection"))  # raises without a frame, as C++ does
    handle = clock.timed(lambda: broken)()
    gathering = Path(deepspeed.__path__[0]) / "runtime" / "zero" / "partition_parameters.py"
    spoken: dict[str, Callable[[object], object]] = {}
    exec(compile("def wait(handle): return handle.wait()", str(gathering), "exec"), spoken)
    assert blame(_caught(lambda: spoken["wait"](handle))) is Blame.PEERS


def test_a_failure_of_the_built_in_model_is_ours() -> None:
    from stormsail.platform.config.builtin_args import TransformerArgs

    model = Transformer(TransformerArgs(vocab_size=8, d_model=8, layers=1, heads=2), seed=0)
    error = _caught(lambda: model(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 3), torch.ones(1, 4)))
    assert blame(error) is Blame.OURS
