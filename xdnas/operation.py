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

from xdnas.causal import masked, stacked, windows
from xdnas.fused import Fused, columns
from xdnas.geometry import Geometry
from xdnas.kmatrix import as_complex
from xdnas.kronecker import Kronecker
from xdnas.pipeline import operate
from xdnas.planes import real_matrices
from xdnas.spectrum import half, kept_columns, kept_rows
from xdnas.stages import analysis, single, synthesis
from xdnas.steps import Stage, run

# one dense matrix per axis up to this size: with several axes block factors need copies that a matrix does not
DENSE_UP_TO = {1: 64, 2: 128, 3: 128}


class Operation(NamedTuple):
    """Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j), w placed and the output read as `geometry` says.

    weight: (O, I / G, *kernel); C: pairs (O, I / G, 2) or None; b: pairs (*n, 2) or None, with `compact` (kept(n[0]),
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
    """An operation on one axis by taps, as `causal.masked` takes it: K (U, F), L (F, R), W (R, I / G, O), M (F, T)."""

    K: Tensor
    L: Tensor
    W: Tensor
    M: Tensor


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
    form = stacked if brute_force else masked

    def window(x: Tensor) -> Tensor:
        steps = x.shape[2]
        return form(x, own.K[: steps + tail], own.L, own.W, own.M[:, :steps], op.groups)

    return windows(x, axis.size, tail, window)


def arrays(op: Operation, sizes: Sequence[int]) -> Arrays:
    """An operation on signals of some (padded) sizes."""
    m, k = op.fused(op.M), op.fused(op.K)
    sides = [columns(own, axis.kernel) for own, axis in zip(op.fused(op.L), op.geometry.axes, strict=True)]
    b = None if op.b is None else as_complex(op.b)
    if op.compact:
        own = half(op.geometry.n[0], op.weight.device)
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
    taps = run(stages, taps, tensors)
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
    (axis,), (k,), (l_,), (m,) = op.geometry.axes, op.K, op.L, op.M
    K, L, M = k.dense(), axis.kernel.take(l_.dense(), 1), m.dense()
    W = op.weight.to(K.real.dtype).permute(2, 1, 0)
    gates = torch.ones_like(W[:1]) if op.C is None else as_complex(op.C).mT[None]
    W = gates * W
    if op.compact:
        own = half(k.n, K.device)
        K, L, M = K.index_select(1, own.rows) * own.counts, L.index_select(0, own.rows), M.index_select(0, own.rows)
    if op.b is not None:
        L, W = torch.cat((L, as_complex(op.b)[:, None]), 1), torch.cat((W, gates))
    return Taps(axis.output.take(K, 0), L, W, M[:, : axis.size])
