"""The benchmark measures what it says: its floor is the convolution, its meters see what is there."""

import re
import time
from math import prod
from typing import Any

import layers
import operation
import pytest
import torch
from fourier import Fourier
from layers import ROWS, Row, convolution, example, xd
from measure import CLEAR, growth_of_memory, interleaved, peak_memory, training_step
from sections import Plan, training
from tables import Report, page
from torch import Tensor, nn

LAYERS = ("convolution", "full", "floor")
TINY = Row("tiny", (2, 4, 12), 3, 1, bound=1e9, published=7.7)


@pytest.mark.parametrize(
    ("shape", "kernel", "padding", "mode"),
    [
        ((2, 3, 11), 3, 1, "circular"),
        ((2, 3, 9, 7), 3, 1, "circular"),
        ((1, 2, 5, 6, 7), 5, 2, "circular"),
        ((2, 3, 11), 4, 3, "zeros"),
        ((2, 3, 9), 5, 0, "zeros"),
        ((2, 3, 9, 7), 3, 1, "zeros"),
        ((1, 2, 5, 6, 7), 3, 1, "zeros"),
    ],
)
def test_the_floor_is_the_convolution_with_its_gradients(
    shape: tuple[int, ...], kernel: int, padding: int, mode: Any
) -> None:
    conv = convolution(Row("row", shape, kernel, padding, mode, bias=True)).double()
    x = torch.randn(shape, dtype=torch.double, requires_grad=True)
    right = _with_gradients(conv, conv, x)
    for got, wanted in zip(_with_gradients(Fourier(conv), conv, x), right, strict=True):
        torch.testing.assert_close(got, wanted)


def _with_gradients(layer: nn.Module, conv: nn.Module, x: Tensor) -> list[Tensor]:
    y = layer(x)
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
    return [y.detach(), *torch.autograd.grad(y, [x, *conv.parameters()], cotangent)]


def test_every_row_starts_at_its_convolution() -> None:
    for row in ROWS.values():
        small = row._replace(shape=(2, 3, *(12 for _ in row.size)))
        x = example(small)
        torch.testing.assert_close(xd(small)(x), convolution(small)(x), rtol=1e-4, atol=1e-5)


def test_a_step_makes_every_gradient_anew() -> None:
    layer, x = xd(TINY), example(TINY)
    step = training_step(layer, x)
    step()
    first = [p.grad for p in (x, *layer.parameters())]
    step()
    for before, p in zip(first, (x, *layer.parameters()), strict=True):
        assert before is not None
        assert p.grad is not before
        torch.testing.assert_close(p.grad, before)


def test_times_are_medians_of_interleaved_calls() -> None:
    order: list[str] = []

    def long() -> None:
        order.append("l")
        time.sleep(0.02)

    seconds = interleaved({"short": lambda: order.append("s"), "long": long}, repeats=4, seconds=10)
    assert "".join(order) == "sl" * 5  # the first round is a warm-up
    assert seconds["short"] < 0.02 <= seconds["long"] < 1


@pytest.mark.parametrize(("repeats", "rounds"), [(9, 2), (1, 1)])
def test_a_round_longer_than_the_limit_counts_at_once(repeats: int, rounds: int) -> None:
    count: list[int] = []

    def long() -> None:
        count.append(1)
        time.sleep(0.01)

    assert interleaved({"long": long}, repeats, seconds=0.005)["long"] >= 0.01
    assert len(count) == rounds


@pytest.mark.skipif(not CLEAR.exists(), reason="the meter reads Linux's /proc")
def test_the_memory_meter_sees_what_was_freed_again() -> None:
    def allocate() -> None:
        torch.ones(16 * 2**20)  # 64 MiB of floats, gone at once

    growth_of_memory(allocate)
    assert 0.95 < growth_of_memory(allocate) / 2**26 < 1.1
    assert growth_of_memory(lambda: None) < 2**22


@pytest.mark.skipif(not CLEAR.exists(), reason="the meter reads Linux's /proc")
def test_a_layer_is_measured_in_a_process_of_its_own() -> None:
    row = ROWS["jsb"]
    output_and_gradients = 4 * (2 * prod(row.shape) + sum(p.numel() for p in convolution(row).parameters()))
    assert output_and_gradients <= peak_memory("jsb", "convolution") < 10 * output_and_gradients


def test_a_missing_package_leaves_its_column_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(row: Row) -> nn.Module:
        raise ModuleNotFoundError("No module named 'neuralop'")

    monkeypatch.setitem(layers.LAYERS, "spectral", missing)
    report, row = Report(), TINY._replace(modes=(2,))
    training(report, Plan(1, 1, [1], ["tiny"], ("full", "spectral")), [row])
    assert report.lines[-1].split(" | ")[-2] == "-"
    assert "No module named 'neuralop'" in report.notes[0]


def test_a_row_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    training(report, Plan(1, 1, [1], ["tiny"], LAYERS), [TINY, ROWS["burgers"]])
    cells = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert cells[:4] == ["| tiny", "(2, 4, 12)", "3, circular", "1"]
    assert re.fullmatch(r"[\d.]+x \(≤ 1e\+09: met\)", cells[5])
    assert len(report.checks) == 1
    text = page(report, {}, {"seed": 0})
    assert "1 of 1 bounds met." in text
    assert '"torch": "' in text


def test_a_missed_bound_is_told_with_its_reason() -> None:
    report = Report()
    assert report.bounded("jsb: full form", "1 thread", 5, 4) == "5.00x (≤ 4: **missed**)"
    assert report.bounded("jsb: full form", "2 threads", None, 4) == "-"
    report.bounded("jsb: full form", "2 threads", 6, 4)
    lines = report.summary({"jsb: full form": "The transforms."})
    missed = "- jsb: full form: 5 on 1 thread, 6 on 2 threads instead of 4. The transforms."
    assert lines == ["0 of 2 bounds met.", "", missed]


def test_a_part_is_not_kept_as_the_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["operation.py", "--write", "--rows", "burgers"])
    with pytest.raises(SystemExit):
        operation.main()
    assert "leave out --rows" in capsys.readouterr().err
