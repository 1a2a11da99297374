"""Time of XD-operations against the convolutions that they replace, side by side in one process.

    python benchmarks/operation.py [--repeats 7] [--threads 1 2] [--write]

A row is forward plus backward in training mode; the ratio is of the medians of interleaved runs. --write keeps the
table as benchmarks/results/operation.md.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from xdnas import XD
from xdnas.files import write_atomic

RESULTS = Path(__file__).parent / "results" / "operation.md"


class Row(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kernel: int
    conv: dict[str, Any]
    xd: dict[str, Any]
    bound: float
    published: str


PLAIN = {"arch_bias": False, "gates": False}
CIFAR = {"padding": 1, "bias": False}
ROWS = [
    Row("Burgers", (20, 64, 1024), 17, {"padding": 8, "padding_mode": "circular", "bias": False}, PLAIN, 3.0, "7.7"),
    Row("CIFAR, depth 3", (128, 16, 32, 32), 3, {**CIFAR, "padding_mode": "circular"}, {"depth": 3}, 8.0, "40"),
    Row("CIFAR, depth 3, zeros", (128, 16, 32, 32), 3, CIFAR, {"depth": 3}, float("nan"), "40 (circular)"),
]


def step(layer: nn.Module, x: Tensor, cotangent: Tensor) -> None:
    """One forward and backward pass; gradients of the input too, as inside a network."""
    layer.zero_grad()
    x.grad = None
    layer(x).backward(cotangent)


def interleaved(calls: list[Callable[[], None]], repeats: int) -> list[float]:
    """Median seconds of each call, the calls taking turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(2):
        for call in calls:
            call()
    for _ in range(repeats):
        for call, seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def measure(row: Row, repeats: int) -> tuple[float, float, float]:
    """Seconds of the convolution and of XD, and the largest relative difference of their outputs."""
    torch.manual_seed(0)
    _, channels, *size = row.shape
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1](channels, channels, row.kernel, **row.conv)
    xd = XD.from_conv(conv, size, **row.xd)
    x = torch.randn(row.shape, requires_grad=True)
    y = conv(x)
    error = float((xd(x) - y).detach().norm() / y.detach().norm())
    cotangent = torch.randn_like(y)
    slow, fast = interleaved([lambda: step(conv, x, cotangent), lambda: step(xd, x, cotangent)], repeats)
    return slow, fast, error


def table(threads: list[int], repeats: int) -> str:
    lines = [
        "| shape | kernel | threads | convolution, ms | XD, ms | ratio | bound | published code | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for count in threads:
        torch.set_num_threads(count)
        for row in ROWS:
            slow, fast, error = measure(row, repeats)
            bound = "-" if row.bound != row.bound or count != 1 else f"{row.bound:g}x"
            lines.append(
                f"| {row.name} {row.shape} | {row.kernel} | {count} | {slow * 1e3:.0f} | {fast * 1e3:.0f} | "
                f"{fast / slow:.2f}x | {bound} | {row.published}x | {error:.0e} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--write", action="store_true", help=f"keep the table as {RESULTS}")
    options = parser.parse_args()
    rows = table(options.threads, options.repeats)
    if options.write:
        hardware = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {platform.platform()}"
        text = (
            "# Cost of one XD layer\n\nForward plus backward in training mode, float32, medians of "
            f"{options.repeats} interleaved runs in one process (`make bench`). {hardware}.\n\n{rows}\n"
        )
        RESULTS.parent.mkdir(exist_ok=True)
        write_atomic(RESULTS, text)


if __name__ == "__main__":
    main()
