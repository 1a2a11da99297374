"""Fourier neural operator (Li et al. 2021): the PDE network with spectral layers in place of its convolutions."""

from itertools import product

import torch
from torch import Tensor, nn

from xdnas.backbones.pde import OperatorNet


class SpectralConv(nn.Module):
    """Multiply the lowest `modes` frequencies of every axis by complex channel matrices, drop the others.

    Input (B, inputs, *size) to (B, outputs, *size). `weight` is real pairs
    (corners, inputs, outputs, *modes, 2): one corner for every sign of the frequencies of all axes but the last.
    """

    def __init__(self, inputs: int, outputs: int, modes: tuple[int, ...]) -> None:
        super().__init__()
        self.modes = modes
        corners = 2 ** (len(modes) - 1)
        self.weight = nn.Parameter(torch.rand(corners, inputs, outputs, *modes, 2) / (inputs * outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Real in, real out."""
        size = x.shape[2:]
        if any(2 * m > s for m, s in zip(self.modes, size, strict=True)):
            raise ValueError(f"SpectralConv: {self.modes} modes need a grid of twice that per axis, got {tuple(size)}")
        axes = tuple(range(2, x.dim()))
        spectrum = torch.fft.rfftn(x, dim=axes)
        weight = torch.view_as_complex(self.weight)
        result = spectrum.new_zeros(x.shape[0], weight.shape[2], *spectrum.shape[2:])
        low, high = [slice(m) for m in self.modes], [slice(-m, None) for m in self.modes]
        for corner, signs in enumerate(product((False, True), repeat=len(size) - 1)):
            where = (..., *(h if s else lo for s, lo, h in zip(signs, low, high, strict=False)), low[-1])
            result[where] = torch.einsum("bi...,io...->bo...", spectrum[where], weight[corner])
        y: Tensor = torch.fft.irfftn(result, s=size, dim=axes)
        return y


class FNO(OperatorNet):
    """The network whose mixers are spectral layers of `modes` frequencies per axis; other arguments as in `PDENet`."""

    def __init__(
        self, dimensions: int = 1, in_channels: int = 2, out_channels: int = 1, width: int = 64, modes: int = 16
    ) -> None:
        if modes < 1:
            raise ValueError(f"FNO: modes {modes} must be at least 1")
        super().__init__(
            dimensions, in_channels, out_channels, width, lambda: SpectralConv(width, width, (modes,) * dimensions)
        )
