"""The floor: a convolution by the library's real FFT, which is an XD-operation whose K, L and M are fixed to it.

Plain torch with autograd's backward pass, the fastest of the ways that were tried: real transforms, axis by axis so
that most of the zeros around a kernel are not transformed, and channels mixed by one batched product.
"""

import torch
from torch import Tensor, nn

from xdnas.transforms import good_size

Size = tuple[int, ...]


class Fourier(nn.Module):
    """The function of a convolution of stride and dilation 1, by FFTs; (B, I, *N) to (B, O, *T)."""

    def __init__(self, conv: "nn.Conv1d | nn.Conv2d | nn.Conv3d") -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.padding = tuple(int(p) for p in conv.padding)
        self.circular = conv.padding_mode == "circular"

    def forward(self, x: Tensor) -> Tensor:
        """The convolution: circular as it is, for zeros on a circle large enough for both borders."""
        size = tuple(x.shape[2:])
        pairs = list(zip(size, self.padding, strict=True))
        n = size if self.circular else tuple(good_size(s + p) for s, p in pairs)
        y = _inverse(torch.bmm(_transform(x, n), _transform(self.weight, n).mH), n)
        axes = tuple(range(2, x.dim()))
        y = y.roll(self.padding, axes)
        if not self.circular:
            kernel = self.weight.shape[2:]
            for axis, ((s, p), k) in enumerate(zip(pairs, kernel, strict=True), 2):
                y = y.narrow(axis, 0, s + 2 * p - k + 1)
        return y if self.bias is None else y + self.bias.view(-1, *(1,) * len(n))


def _transform(x: Tensor, n: Size) -> Tensor:
    """(B, I, *N) to (F, B, I), half of the spectrum of `n` positions."""
    # axis by axis, since most of a kernel's lines are zero until the last one
    y: Tensor = torch.fft.rfft(x, n[-1])
    for axis in reversed(range(len(n) - 1)):
        y = torch.fft.fft(y, n[axis], dim=axis + 2)
    # strided, the batched product would copy one frequency after another
    return y.flatten(2).permute(2, 0, 1).contiguous()


def _inverse(y: Tensor, n: Size) -> Tensor:
    """(F, B, O) to (B, O, *n)."""
    x: Tensor = y.permute(1, 2, 0).contiguous().unflatten(2, (*n[:-1], n[-1] // 2 + 1))
    for axis in range(len(n) - 1):
        x = torch.fft.ifft(x, dim=axis + 2)
    signal: Tensor = torch.fft.irfft(x, n[-1])
    return signal
