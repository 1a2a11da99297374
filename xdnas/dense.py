"""An XD-operation as one real matrix, written out from its definition: slow, and without the fast ways' products."""

from functools import reduce
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from xdnas.geometry import Axis
from xdnas.kmatrix import as_complex
from xdnas.operation import Operation
from xdnas.spectrum import half


def dense(op: Operation, *, causal: bool) -> Tensor:
    """The matrix (O, *output size, I, *input size); `causal`: masked to its lower triangle."""
    axes = list(zip(op.geometry.axes, op.K, op.L, op.M, strict=True))
    left = reduce(torch.kron, (a.output.take(k.dense(), 0) for a, k, _, _ in axes))
    taps = reduce(torch.kron, (a.kernel.take(l_.dense(), 1) for a, _, l_, _ in axes))
    right = reduce(torch.kron, (m.dense() @ _padding(op, a).to(left.dtype) for a, _, _, m in axes))
    diagonal = op.weight.flatten(2).to(left.dtype) @ taps.T
    if op.compact:
        rows, counts = _kept(op)
        left, right, diagonal = left[:, rows] * counts, right[rows], diagonal[..., rows]
    if op.b is not None:
        diagonal = diagonal + as_complex(op.b).flatten()
    if op.C is not None:
        diagonal = diagonal * as_complex(op.C)[..., None]
    matrix = torch.einsum("tf,oif,fs->otis", left, diagonal, right).real
    if causal:
        seen = torch.ones(matrix.shape[1], matrix.shape[3], dtype=torch.bool, device=matrix.device).tril()
        matrix = torch.where(seen[:, None], matrix, 0.0)
    return _all_channels(matrix, op.groups).reshape(
        matrix.shape[0], *op.geometry.output_size, -1, *(axis.size for axis in op.geometry.axes)
    )


def _kept(op: Operation) -> tuple[Tensor, Tensor]:
    """Rows of the Kronecker products that are kept of the whole spectrum, and how often each counts."""
    n = op.geometry.n
    own = half(n, op.weight.device)
    behind = prod(n[1:])
    rows = own.rows[:, None] * behind + torch.arange(behind, device=own.rows.device)
    return rows.flatten(), own.counts[:, None].expand_as(rows).flatten()


def _all_channels(matrix: Tensor, groups: int) -> Tensor:
    """(O, T, I / groups, S) as (O, T, I, S), zeros between the groups."""
    outputs, inputs = matrix.shape[0] // groups, matrix.shape[2]
    full = matrix.new_zeros(matrix.shape[0], matrix.shape[1], groups * inputs, matrix.shape[3])
    for g in range(groups):
        own = slice(g * outputs, (g + 1) * outputs)
        full[own, :, g * inputs : (g + 1) * inputs] = matrix[own]
    return full


def _padding(op: Operation, axis: Axis) -> Tensor:
    """(n, size): the padding of one axis, then zeros up to the transform size."""
    real = op.K[0].factors
    eye = torch.eye(axis.size, dtype=as_complex(real).real.dtype, device=real.device)
    padded = eye
    if axis.before or axis.after:
        padded = F.pad(eye[None], (axis.before, axis.after), mode=op.geometry.padding_mode)[0]
    return F.pad(padded, (0, axis.n - padded.shape[1])).T
