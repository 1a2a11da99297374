"""Slow twins: the definitions written out with dense matrices, one element at a time where that says it best."""

from functools import reduce

import torch
from torch import Tensor

from xdnas import XD, KMatrix, Kronecker
from xdnas.geometry import Positions
from xdnas.transforms import radices


def kmatrix(matrix: KMatrix) -> Tensor:
    """Product of the factors, each placed by p_j = r (i - i mod s) + i mod s + j s."""
    values = torch.complex(matrix.factors[..., 0], matrix.factors[..., 1])
    n = matrix.n
    result = torch.eye(n, dtype=values.dtype)
    for d in range(matrix.depth):
        increasing = matrix.increasing_stride != (d % 2 == 1)
        order = radices(n)[::-1] if increasing else radices(n)
        start, stride = 0, 1 if increasing else n
        for r in order:
            if not increasing:
                stride //= r
            blocks = values[d, start : start + n * r].reshape(n // r, r, r)
            i = torch.arange(n // r)
            p = (r * (i - i % stride) + i % stride)[:, None] + stride * torch.arange(r)
            factor = torch.zeros_like(result).index_put(
                (p[:, :, None].expand(-1, r, r), p[:, None, :].expand(-1, r, r)), blocks
            )
            result = factor @ result
            start += n * r
            if increasing:
                stride *= r
    return result


def kronecker(product: Kronecker) -> Tensor:
    return reduce(torch.kron, (kmatrix(k) for k in product))


def _units(positions: Positions, n: int) -> Tensor:
    """(n, number): a column with a one at each position."""
    result = torch.zeros(n, positions.number, dtype=torch.float64)
    for column in range(positions.number):
        result[(positions.start + positions.step * column) % n, column] = 1
    return result


def xd(layer: XD, x: Tensor) -> Tensor:
    """Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j) + bias, with w, x and the output placed by the geometry."""
    axes = layer.geometry.axes
    x = layer.geometry.pad(x)
    size = x.shape[2:]
    K, L, M = kronecker(layer.K), kronecker(layer.L), kronecker(layer.M)
    place_w = reduce(torch.kron, (_units(a.kernel, a.n) for a in axes)).to(K.dtype)
    place_x = reduce(torch.kron, (_units(Positions(0, 1, s), a.n) for s, a in zip(size, axes, strict=True))).to(K.dtype)
    read_y = reduce(torch.kron, (_units(a.output, a.n) for a in axes)).to(K.dtype)
    own_in, own_out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    outputs = []
    for i in range(layer.out_channels):
        total = torch.zeros(x.shape[0], K.shape[0], dtype=K.dtype)
        for j in range(own_in):
            diagonal = L @ (place_w @ layer.weight[i, j].flatten().to(K.dtype))
            if layer.b is not None:
                diagonal = diagonal + torch.complex(layer.b[..., 0], layer.b[..., 1]).flatten()
            if layer.C is not None:
                diagonal = diagonal * torch.complex(layer.C[i, j, 0], layer.C[i, j, 1])
            signal = x[:, i // own_out * own_in + j].flatten(1).to(K.dtype) @ place_x.T
            total = total + diagonal * (signal @ M.T)
        y = (total @ K.T @ read_y).real
        outputs.append(y if layer.bias is None else y + layer.bias[i])
    return torch.stack(outputs, 1).reshape(x.shape[0], layer.out_channels, *layer.output_size)


def perturb(module: torch.nn.Module, scale: float = 0.1, seed: int = 0) -> None:
    """Move every parameter away from its start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype))
