"""The layers whose cost is measured: shapes of the paper's tasks, the convolution of each and what is set beside it."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from fourier import Fourier
from torch import Tensor, nn

import xdnas
from xdnas import XD
from xdnas.xd import CONVOLUTIONS

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Row(NamedTuple):
    """One layer: input (batch, channels, *size), as many channels out.

    bound: what the full form may cost, as a multiple of the convolution; published: what the published code costs.
    modes: frequencies of each sign that the paper's Fourier layer keeps.
    """

    name: str
    shape: tuple[int, ...]
    kernel: int
    padding: int
    padding_mode: Literal["zeros", "circular"] = "circular"
    bias: bool = False
    gates: bool = False
    depth: int | None = None
    bound: float | None = None
    published: float | None = None
    modes: tuple[int, ...] | None = None

    @property
    def size(self) -> tuple[int, ...]:
        """Positions of every axis."""
        return self.shape[2:]


BURGERS = Row("burgers", (20, 64, 1024), 17, 8, bound=1.3, published=7.7, modes=(16,))
DARCY = Row("darcy", (4, 32, 85, 85), 13, 6, bound=1.5, published=7.3, modes=(12, 12))
NAVIER_STOKES = Row("navier-stokes", (2, 20, 64, 64, 40), 9, 4, bound=1, published=6, modes=(8, 8, 8))
CIFAR = Row("cifar", (128, 16, 32, 32), 3, 1, gates=True, depth=3, bound=3, published=40)
JSB = Row("jsb", (59, 150, 40), 2, 1, "zeros", bias=True, gates=True, depth=1, bound=4, published=23)
NOTTINGHAM = JSB._replace(name="nottingham", shape=(254, 150, 40), kernel=6, padding=5, bound=2.5, published=7)
SEQUENCE = JSB._replace(name="sequence", shape=(1, 150, 160), kernel=6, padding=5, bound=20, published=358)


def _zeros(row: Row, **changes: Any) -> Row:
    return row._replace(name=f"{row.name}-zeros", padding_mode="zeros", **changes)


ROWS = {
    row.name: row
    for row in (
        BURGERS,
        DARCY,
        _zeros(DARCY, bound=None, published=None),
        NAVIER_STOKES,
        _zeros(NAVIER_STOKES, bound=None, published=None),
        CIFAR,
        _zeros(CIFAR, bound=7, published=None),
        JSB,
        NOTTINGHAM,
        SEQUENCE,
    )
}
PDE = (BURGERS, DARCY, NAVIER_STOKES)
MUSIC = (JSB, NOTTINGHAM, SEQUENCE)
GROWTH = tuple(Row(f"1-d, n = {n}", (4, 32, n), 17, 8) for n in (1024, 2048, 4096, 8192))
LARGE = (Row("2-d, 141 x 141", (4, 32, 141, 141), 13, 6), Row("2-d, 211 x 211", (2, 32, 211, 211), 13, 6))


def convolution(row: Row) -> Convolution:
    """The convolution of a row, the same weights at every call."""
    torch.manual_seed(0)
    channels = row.shape[1]
    kind = CONVOLUTIONS[len(row.size) - 1]
    return kind(channels, channels, row.kernel, padding=row.padding, padding_mode=row.padding_mode, bias=row.bias)


def xd(row: Row, **options: Any) -> XD:
    """The XD-operation that starts as `convolution(row)`, with the row's own architecture parameters."""
    return XD.from_conv(convolution(row), row.size, depth=row.depth, arch_bias=row.gates, gates=row.gates, **options)


def spectral(row: Row) -> nn.Module:
    """The layer of a Fourier neural operator in the package `neuraloperator`, with the paper's modes.

    Raises:
        ModuleNotFoundError: the package or what its import needs is not installed.
        ValueError: the row has no modes.
    """
    from neuralop.layers.spectral_convolution import SpectralConv

    if row.modes is None:
        raise ValueError(f"{row.name} has no Fourier layer in the paper")
    # it counts both signs, and for the last axis halves the number and adds one
    modes = (*(2 * m for m in row.modes[:-1]), 2 * (row.modes[-1] - 1))
    layer: nn.Module = SpectralConv(row.shape[1], row.shape[1], modes, bias=False)
    return layer


LAYERS: dict[str, Callable[[Row], nn.Module]] = {
    "convolution": convolution,
    "full": xd,
    "compact": lambda row: xd(row, compact=True),
    "floor": lambda row: Fourier(convolution(row)),
    "spectral": spectral,
    "inference": lambda row: xdnas.for_inference(xd(row)),
    "causal": lambda row: xd(row, causal=True),
    "stack": lambda row: xd(row, causal="stack"),
}


def example(row: Row) -> Tensor:
    """An input of a row, the same at every call; gradients flow to it as inside a network."""
    return torch.randn(row.shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
