"""What trainers print."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stormsail.platform.errors import ConfigError
from stormsail.supervisor.backtest.columns import Columns
from stormsail.supervisor.backtest.curve import Curve
from stormsail.supervisor.backtest.readers.plain_log import read_plain_log


def read(tmp_path: Path, text: str) -> Curve:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    return read_plain_log(path, Columns())


def triples(curve: Curve) -> list[tuple[int, float, float | None]]:
    return [(point.step, point.loss, point.grad_norm) for point in curve.points]


NANOGPT = """step 0: train loss 10.9, val loss 10.9
iter 0: loss 10.95, time 90ms, mfu -100%
iter 10: loss 9.5, time 9ms
"""
BUILD_FILE = """0 val 10.95
0 hella 0.24
0 train 10.955029
1 train 10.9 lr 1e-4 norm 14.8
"""
BUILD_SCREEN = """validation loss: 10.9
step     0 | loss: 10.955 | lr 8.4e-07 | norm: 15.3 | dt: 9ms | tok/sec: 1
"""
LLMC = """val loss 11.0
step    1/19560 | loss 11.010 (+nanz)| norm 15.07 (+nanz)| lr 8.57e-07 | 1 ms
step    2/19560 | loss nan (+nanz)| norm nan (+nanz)| lr 1e-06 | 1 ms
"""
LLMC_FILE = """s:0 tel:11.0
s:1 trl:10.95 lr:1e-4 norm:3.5
s:2 trl:10.9
"""
MEGATRON = """[default7]: iteration    31219/  115311 | consumed samples: 1 | elapsed time per iteration (s): 104.7 | \
learning rate: 5.9E-05 | global batch size: 2048 | lm loss: 5.098124E+00 | grad norm: 960.352 | TFLOPs: 1 |
"""
TRAINER = """{'loss': 2.31, 'grad_norm': 0.41, 'learning_rate': 1e-05, 'epoch': 0.1}
{'eval_loss': 2.0, 'epoch': 0.1}
{'loss': nan, 'grad_norm': inf, 'epoch': 0.2}
"""


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("nanoGPT", NANOGPT, [(0, 10.95, None), (10, 9.5, None)]),
        ("build-nanogpt (file)", BUILD_FILE, [(0, 10.955029, None), (1, 10.9, 14.8)]),
        ("build-nanogpt", BUILD_SCREEN, [(0, 10.955, 15.3)]),
        ("llm.c", LLMC, [(1, 11.01, 15.07), (2, math.nan, math.nan)]),
        ("llm.c (file)", LLMC_FILE, [(1, 10.95, 3.5), (2, 10.9, None)]),
        ("Megatron", MEGATRON, [(31219, 5.098124, 960.352)]),
        ("HF Trainer", TRAINER, [(0, 2.31, 0.41), (1, math.nan, math.inf)]),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_known_forms_are_read(
    tmp_path: Path, form: str, text: str, expected: list[tuple[int, float, float | None]]
) -> None:
    curve = read(tmp_path, text)
    assert f"read as a log of {form}" in curve.notes
    assert repr(triples(curve)) == repr(expected)  # NaN is not equal to itself


def test_a_progress_bar_between_the_rows_does_no_harm(tmp_path: Path) -> None:
    assert (
        len(read(tmp_path, "1%|  | 1/9\r2%|  |{'loss': 2.5, 'epoch': 0.1}\r3%|\r{'loss': 2.4, 'epoch': 0.2}\n").points)
        == 2
    )


def test_a_log_of_something_else_is_an_error_that_names_the_forms(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known are nanoGPT"):
        read(tmp_path, "hello\nworld\n")


def test_columns_cannot_be_chosen_in_a_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no columns"):
        read_plain_log(tmp_path / "x.log", Columns(loss="a"))


@pytest.mark.parametrize("rank", ["[rank0]: ", "[default7]:", "0: ", "[2026-01-01 10:00:00] [INFO] "])
@pytest.mark.parametrize("text", [NANOGPT, BUILD_FILE, BUILD_SCREEN, LLMC, LLMC_FILE])
def test_what_launchers_put_before_a_line_does_no_harm(tmp_path: Path, rank: str, text: str) -> None:
    marked = "".join(rank + line for line in text.splitlines(keepends=True))
    assert repr(triples(read(tmp_path, marked))) == repr(triples(read(tmp_path, text)))


def megatron(step: int, rest: str) -> str:
    return f" iteration {step:8d}/  500000 | consumed samples: 9 | learning rate: 1E-4 | {rest} |\n"


def test_megatron_tells_a_nan_by_leaving_the_loss_out(tmp_path: Path) -> None:
    counted = "number of skipped iterations: {} | number of nan iterations: {}"
    curve = read(
        tmp_path,
        megatron(1, "lm loss: 3.5E+00 | loss scale: 1.0 | grad norm: 0.3 | " + counted.format(0, 0))
        + megatron(2, "loss scale: 1.0 | " + counted.format(1, 0))
        + megatron(3, "loss scale: 1.0 | " + counted.format(1, 1))
        + megatron(4, "loss scale: 1.0 | grad norm: nan | " + counted.format(0, 0)),
    )
    assert repr(triples(curve)) == repr([(1, 3.5, 0.3), (3, math.nan, None), (4, math.nan, math.nan)])
    assert "its rows count 2 skipped iterations" in curve.notes
    assert "its rows count 1 NaN iterations" in curve.notes


def test_a_step_that_is_no_number_is_passed_over(tmp_path: Path) -> None:
    assert len(read(tmp_path, "{'loss': 2.5, 'step': 1e999}\n{'loss': 2.5, 'step': 1}\n").points) == 1
    assert len(read(tmp_path, f"iter {'9' * 5000}: loss 2.5, x\niter 1: loss 2.5, x\n").points) == 1


def test_ranks_that_print_into_one_log_are_no_restarts(tmp_path: Path) -> None:
    ranks = [(rank, step) for step in range(0, 400, 10) for rank in (0, 1)]
    late = sorted(ranks, key=lambda one: one[1] + 15 * one[0])
    curve = read(tmp_path, "".join(f"[rank{rank}]: iter {step}: loss 3.5, time 1ms\n" for rank, step in late))
    assert [point.step for point in curve.points] == list(range(0, 400, 10))
    restarted = [*range(0, 400, 10), *range(200, 600, 10)]
    curve = read(tmp_path, "".join(f"iter {step}: loss 3.5, time 1ms\n" for step in restarted))
    assert [point.step for point in curve.points] == restarted


def test_where_the_epoch_of_a_trainer_goes_back_so_does_the_count(tmp_path: Path) -> None:
    def lines(*rows: tuple[int, float]) -> str:
        return "".join(f"{{'loss': {loss}, 'grad_norm': 0.4, 'epoch': {row / 100}}}\n" for row, loss in rows)

    run = [(row, 9.0 - row / 50) for row in range(1, 201)]
    second = read(tmp_path, lines(*run, *run))
    assert [point.step for point in second.points] == [*range(200), *range(200)]
    assert any("a second run begins here" in note for note in second.notes)
    restarted = read(tmp_path, lines(*run, *run[150:]))
    assert [point.step for point in restarted.points] == [*range(200), *range(150, 200)]
    assert not any("second run" in note for note in restarted.notes)
