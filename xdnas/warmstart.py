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
