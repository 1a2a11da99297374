"""Named operations as K-matrices: the values from which an XD-operation starts."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from xdnas.kmatrix import KMatrix
from xdnas.kronecker import Kronecker


class Start(NamedTuple):
    """The three K-matrices of an operation."""

    K: Kronecker
    L: Kronecker
    M: Kronecker


def convolution(
    n: Sequence[int],
    depth: tuple[int, int, int] = (1, 1, 1),
    *,
    device: "torch.device | str | None" = None,
    dtype: torch.dtype | None = None,
) -> Start:
    """The circular convolution on axes of sizes n: K = F^-1, M = F unitary, L = F not normalized.

    Kernel positions, stride, dilation and border are the layer's geometry, so depth 1 holds every convolution
    (Roberts et al. 2021, Section 3.1, where they are folded into the matrices at the price of depth).
    """

    def kronecker(init: str, depth: int, normalized: bool) -> Kronecker:
        return Kronecker(*(KMatrix(s, depth, init, normalized=normalized, device=device, dtype=dtype) for s in n))

    return Start(kronecker("idft", depth[0], True), kronecker("dft", depth[1], False), kronecker("dft", depth[2], True))


def pointwise(
    n: Sequence[int],
    depth: tuple[int, int, int] = (1, 1, 1),
    *,
    device: "torch.device | str | None" = None,
    dtype: torch.dtype | None = None,
) -> Start:
    """The product with the tap at position 0 of the circle, for operations whose K and M stay lower triangular.

    K = M = identity, and L has ones in its first column and zeros elsewhere, so that L w + b starts at w[0]. K D M is
    exactly lower triangular for every diagonal D, so the operation is causal as it stands, and L is left free.

    It cannot start at a convolution with two taps or more. One tap w = e_0 must give the identity, K diag(l_0) M = I,
    so the tap e_1 gives K diag(l_1 / l_0) K^-1, which is diagonalisable; but a shift without wrap on n points is
    nilpotent. Such a convolution is the start of the masked operation, `xdnas.causal.masked`.
    """

    def kronecker(init: str, depth: int, triangular: bool) -> Kronecker:
        return Kronecker(*(KMatrix(s, depth, init, triangular=triangular, device=device, dtype=dtype) for s in n))

    return Start(
        kronecker("identity", depth[0], True),
        kronecker("first", depth[1], False),
        kronecker("identity", depth[2], True),
    )
