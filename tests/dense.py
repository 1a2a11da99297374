"""Slow twins: the definitions written out with dense matrices, one element at a time where that says it best."""

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch
from torch import Tensor, nn

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
            blocks = blocks.tril() if matrix.triangular else blocks
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


def kept(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions of the frequencies f that the compact form keeps, ordered by f mod R and position, and counts.

    R is the first size of the grid, or n where the axis is one dense matrix; kept are f mod R <= R / 2, and what is
    not at either end counts twice.
    """
    matrix = KMatrix(sizes[0])
    first = sizes[0] if sizes[0] <= (64 if len(sizes) == 1 else 128) else matrix.fused().grid[0]
    classes = [(frequency % first, position) for position, frequency in enumerate(matrix.frequencies.tolist())]
    own = sorted((low, position) for low, position in classes if 2 * low <= first)
    return [position for _, position in own], [1 if low in (0, first - low) else 2 for low, _ in own]


def _spectrum(layer: XD) -> tuple[Tensor, Tensor]:
    """How often every frequency is counted, and b there, zero where the layer has none."""
    n, whole = layer.n[0], (list(range(layer.n[0])), [1] * layer.n[0])
    rows, often = map(torch.tensor, kept(layer.n) if layer.compact else whole)
    counts = torch.zeros(n, dtype=torch.float64).index_put((rows,), often.double())
    b = torch.zeros(layer.n, dtype=torch.complex128)
    if layer.b is not None:
        b = b.index_put((rows,), torch.complex(layer.b[..., 0], layer.b[..., 1]).to(b.dtype))
    return counts.repeat_interleave(prod(layer.n[1:])), b.flatten()


def xd(layer: XD, x: Tensor) -> Tensor:
    """Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j) + bias, with w, x and the output placed by the geometry.

    A compact layer sums over the frequencies that it keeps, each as often as it counts.
    """
    axes = layer.geometry.axes
    x = layer.geometry.pad(x)
    size = x.shape[2:]
    K, L, M = kronecker(layer.K), kronecker(layer.L), kronecker(layer.M)
    place_w = reduce(torch.kron, (_units(a.kernel, a.n) for a in axes)).to(K.dtype)
    place_x = reduce(torch.kron, (_units(Positions(0, 1, s), a.n) for s, a in zip(size, axes, strict=True))).to(K.dtype)
    read_y = reduce(torch.kron, (_units(a.output, a.n) for a in axes)).to(K.dtype)
    often, b = (part.to(K.dtype) for part in _spectrum(layer))
    own_in, own_out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    outputs = []
    for i in range(layer.out_channels):
        total = torch.zeros(x.shape[0], K.shape[0], dtype=K.dtype)
        for j in range(own_in):
            diagonal = often * (L @ (place_w @ layer.weight[i, j].flatten().to(K.dtype)) + b)
            if layer.C is not None:
                diagonal = diagonal * torch.complex(layer.C[i, j, 0], layer.C[i, j, 1])
            signal = x[:, i // own_out * own_in + j].flatten(1).to(K.dtype) @ place_x.T
            total = total + diagonal * (signal @ M.T)
        y = (total @ K.T @ read_y).real
        outputs.append(y if layer.bias is None else y + layer.bias[i])
    return torch.stack(outputs, 1).reshape(x.shape[0], layer.out_channels, *layer.output_size)


def causal(layer: XD, x: Tensor) -> Tensor:
    """Output t is output t of the unmasked operation on what a window has seen up to step t, with zeros behind it.

    The window is the whole input up to input_size steps, and by the rule of `xdnas.causal.windows` for longer ones.
    """
    (history,), steps = layer.input_size, x.shape[2]
    hop, length = max(1, history // 2), steps + layer.output_size[0] - history
    begins = [0 if t < history or steps <= history else (t - history + hop) // hop * hop for t in range(length)]
    prefixes = [x[:, :, begin : t + 1][..., :history] for t, begin in enumerate(begins)]
    padded = torch.stack([nn.functional.pad(p, (0, history - p.shape[2])) for p in prefixes], 1)
    y = xd(layer, padded.flatten(0, 1)).unflatten(0, padded.shape[:2])
    return torch.stack([y[:, t, :, t - begin] for t, begin in enumerate(begins)], 2)


def relative(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||."""
    return float(((a - b).norm() / b.norm().clamp_min(1e-30)).detach())


def assert_same(
    given: Tensor, wanted: Tensor, inputs: Sequence[Tensor], values: float = 1e-12, gradients: float = 1e-11
) -> None:
    """Two tensors, and their gradients by every input on one random cotangent, agree up to relative tolerances."""
    assert given.shape == wanted.shape
    assert given.dtype == wanted.dtype
    assert relative(given, wanted) <= values
    cotangent = torch.randn(wanted.shape, dtype=wanted.dtype, generator=torch.Generator().manual_seed(7))
    pairs = zip(*(torch.autograd.grad(y, inputs, cotangent) for y in (given, wanted)), strict=True)
    errors = [relative(a, b) for a, b in pairs]
    assert max(errors) <= gradients, errors


def perturb(module: torch.nn.Module, scale: float = 0.1, seed: int = 0) -> None:
    """Move every parameter away from its start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype))
