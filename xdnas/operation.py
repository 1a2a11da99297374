"""What an XD-operation consists of at one moment, and its two ways of being computed: by frequencies, and by taps.

By frequencies the signal is transformed and channels are mixed at each frequency (pipeline.py). By taps the real matrix
of every kernel tap is made and channels are mixed as in a convolution (causal.py).

Shapes in comments: I inputs, O outputs, G groups, F frequencies (the product of all axes), R taps.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from xdnas.causal import apply_lower, lower_part, real_taps, stacked, windows
from xdnas.fused import DENSE_UP_TO, Fused, apply, columns
from xdnas.geometry import Geometry, Positions
from xdnas.kmatrix import as_complex
from xdnas.kronecker import Kronecker
from xdnas.pipeline import operate, transform
from xdnas.planes import real_matrices
from xdnas.spectrum import half, kept_columns, kept_rows
from xdnas.stages import analysis, single, synthesis
from xdnas.steps import Stage


class Operation(NamedTuple):
    """Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j), w placed and the output read as `geometry` says.

    weight: (O, I / G, *kernel); C: pairs (O, I / G, 2) or None; b: pairs (*n, 2) or None, with `compact` (kept(n),
    *n[1:], 2); compact: half of the spectrum of the first axis (spectrum.py).
    """

    geometry: Geometry
    groups: int
    K: Kronecker
    L: Kronecker
    M: Kronecker
    weight: Tensor
    b: Tensor | None
    C: Tensor | None
    compact: bool

    def fused(self, matrix: Kronecker) -> list[Fused]:
        """The K-matrices of all axes, fused."""
        return [k.fused(DENSE_UP_TO[len(self.geometry.axes)]) for k in matrix]


class Arrays(NamedTuple):
    """An operation by frequencies, ready for `pipeline.operate`.

    before, behind: stages of M and of K; first, second: the matrices of their steps; side (1 or lead, 2 n, k) and taps
    (lead, k, pairs): their product is C (L w + b) for all pairs.
    """

    before: tuple[Stage, ...]
    behind: tuple[Stage, ...]
    side: Tensor
    taps: Tensor
    first: list[Tensor]
    second: list[Tensor]


class Taps(NamedTuple):
    """An operation on one axis by taps, in the terms of `causal.masked`: L (F, R), W (R, I / G, O), M (F, T).

    K: fused; outputs: the rows of it that are read.
    """

    K: Fused
    outputs: Positions
    L: Tensor
    W: Tensor
    M: Tensor

    def rows(self, number: int) -> Tensor:
        """The first rows of K that are read, (U, F)."""
        whole = columns(self.K, Positions(0, 1, self.L.shape[0]))
        return self.outputs.take(whole, 0)[:number]

    def lower(self, number: int, steps: int) -> tuple[Tensor, Tensor]:
        """`causal.lower_matrices` and real weights, as `causal.apply_lower` takes them."""
        L, W = real_taps(self.L, self.W)
        right = L[:, :, None] * self.M[:, None, :steps]
        full = self.outputs.take(apply(self.K, right.flatten(1)), 0)[:number]
        return lower_part(full.real.view(number, L.shape[1], steps)), W


def by_frequencies(op: Operation, x: Tensor) -> Tensor:
    """The operation on x (B, I, *input size): (B, O, *output size)."""
    x = op.geometry.pad(x)
    own = arrays(op, x.shape[2:])
    return operate(
        own.before, own.behind, op.groups, op.geometry.output_size, x, own.side, own.taps, own.first, own.second
    )


def by_taps(op: Operation, x: Tensor, *, brute_force: bool) -> Tensor:
    """The operation masked to its lower triangle, on x (B, I, T) with any T: (B, O, T + padding)."""
    own, (axis,) = taps(op), op.geometry.axes
    tail = axis.output.number - axis.size

    def window(x: Tensor) -> Tensor:
        steps = x.shape[2]
        if brute_force:
            return stacked(x, own.rows(steps + tail), own.L, own.W, own.M[:, :steps], op.groups)
        return apply_lower(x, *own.lower(steps + tail, steps), op.groups)

    return windows(x, axis.size, tail, window)


def arrays(op: Operation, sizes: Sequence[int]) -> Arrays:
    """An operation on signals of some (padded) sizes."""
    m, k = op.fused(op.M), op.fused(op.K)
    sides = [columns(own, axis.kernel) for own, axis in zip(op.fused(op.L), op.geometry.axes, strict=True)]
    b = None if op.b is None else as_complex(op.b)
    if op.compact:
        own = half(op.geometry.n, op.weight.device)
        m[0], k[0] = kept_rows(m[0], own), kept_columns(k[0], own)
        sides[0] = sides[0].index_select(0, own.rows) * own.counts[:, None]
        b = None if b is None else b * own.counts.view(-1, *(1,) * (b.dim() - 1))
    before, first = analysis(m, sizes)
    behind, second = synthesis(k, [axis.output for axis in op.geometry.axes])
    return Arrays(before, behind, *_diagonals(op, sides, b), first, second)


def _diagonals(op: Operation, sides: Sequence[Tensor], b: Tensor | None) -> tuple[Tensor, Tensor]:
    """The side and the taps of all pairs, from the columns of L that meet the kernel."""
    taps, ones = gated_kernel(op)
    stages, tensors = analysis([single(side) for side in sides[:-1]], op.weight.shape[2:-1], taps.shape[0])
    taps = transform(stages, taps, tensors)
    lead, last = prod([side.shape[0] for side in sides[:-1]]), sides[-1].shape[0]
    taps = taps.reshape(lead, -1, ones.shape[1])
    planes = taps.shape[1] // op.weight.shape[-1]
    matrix = real_matrices(sides[-1][None], 2, planes, rows_inside=True, columns_inside=False)
    if b is None:
        return matrix, taps
    # b rides along as one more tap, whose weight is C
    column = b.reshape(lead, last, 1)
    own = real_matrices(column, 2, ones.shape[0], rows_inside=True, columns_inside=False)
    return torch.cat((matrix.expand(lead, -1, -1), own), 2), torch.cat((taps, ones.expand(lead, -1, -1)), 1)


def gated_kernel(op: Operation) -> tuple[Tensor, Tensor]:
    """C w as (planes, taps, pairs) and C as (planes, pairs), real without gates; pairs (G, I / G, O / G)."""
    outputs, own = op.weight.shape[0] // op.groups, op.weight.shape[1]
    pairs = own * op.weight.shape[0]
    weight = op.weight.to(as_complex(op.K[0].factors).real.dtype)
    kernel = weight.reshape(op.groups, outputs, own, -1).permute(3, 0, 2, 1).reshape(-1, pairs)
    if op.C is None:
        return kernel[None], torch.ones(1, pairs, dtype=kernel.dtype, device=kernel.device)
    gates = op.C.to(kernel.dtype).view(op.groups, outputs, own, 2).permute(3, 0, 2, 1).reshape(2, pairs)
    return gates[:, None] * kernel, gates


def taps(op: Operation) -> Taps:
    """An operation on one axis by taps; b is one more tap, whose weight is C."""
    (axis,), (K,), (M,) = op.geometry.axes, op.fused(op.K), op.fused(op.M)
    L, steps = columns(op.fused(op.L)[0], axis.kernel), Positions(0, 1, axis.size)
    W = op.weight.to(L.real.dtype).permute(2, 1, 0)
    gates = torch.ones_like(W[:1]) if op.C is None else as_complex(op.C).mT[None]
    W = gates * W
    own = half(op.geometry.n, L.device) if op.compact else None
    if own is not None:
        K, M, L = kept_columns(K, own), kept_rows(M, own), L.index_select(0, own.rows)
    if op.b is not None:
        L, W = torch.cat((L, as_complex(op.b)[:, None]), 1), torch.cat((W, gates))
    if own is not None:
        L = L * own.counts[:, None]
    return Taps(K, axis.output, L, W, columns(M, steps))
