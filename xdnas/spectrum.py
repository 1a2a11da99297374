"""Half of a spectrum: what the compact form keeps of its first axis.

The transform of a real signal takes conjugate values at the frequencies f and -f. So the operation that starts at a
convolution needs one of each such pair, counted twice, and a frequency that stands for itself once. Once K, L, M and b
have moved, what is left out would no longer follow from what is kept: the compact form is a smaller family.

Frequencies stand in digit-reversed order (transforms.py), and a fused matrix leaves out leading digits as a whole. The
leading digits of a frequency f give f mod R, where R is the first size of the grid (fused.py). Kept are the frequencies
with f mod R <= R / 2. A frequency strictly between 0 and R / 2 has its partner above R / 2 and counts twice; at both
ends, f mod R = 0 and R / 2, the partners are kept as well and all count once. Where the axis is one dense matrix, up to
n = 64 on one axis and 128 on several, R = n, and that is every frequency from 0 to n / 2; for larger n it is 50 to 63 %
of them.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from xdnas.fused import DENSE_UP_TO, Factor, Fused, digit_runs
from xdnas.transforms import reversed_digits


class Half(NamedTuple):
    """The kept rows of a transform of size n, in their order.

    digits: (R // 2 + 1,) their leading digits; rows: (kept(n),) their numbers; counts: (kept(n),) how often each is
    counted, once or twice.
    """

    digits: Tensor
    rows: Tensor
    counts: Tensor


def kept(n: Sequence[int]) -> int:
    """The number of frequencies that are kept of the first of some axes of sizes n."""
    first = prod(_leading(n))
    return (first // 2 + 1) * (n[0] // first)


def half(n: Sequence[int], device: torch.device) -> Half:
    """What is kept of the first of some axes of sizes n, ordered by f mod R, then by its place."""
    leading = _leading(n)
    first = prod(leading)
    behind = n[0] // first
    low = torch.arange(first // 2 + 1, device=device)  # f mod R
    digits = reversed_digits(leading[::-1], device)[: first // 2 + 1]
    rows = digits[:, None] * behind + torch.arange(behind, device=device)
    counts = 2 - ((low == 0) | (2 * low == first)).long()
    return Half(digits, rows.flatten(), counts[:, None].expand(-1, behind).flatten())


def _leading(n: Sequence[int]) -> tuple[int, ...]:
    return digit_runs(n[0], DENSE_UP_TO[len(n)])[0]


def kept_rows(fused: Fused, own: Half) -> Fused:
    """The kept rows of a matrix, at the cost of these rows alone."""
    if len(fused.grid) == 1:
        return Fused(fused.grid, [_selected(fused.factors[0], 2, own.rows)])
    *factors, last = fused.factors
    behind = []
    while last.axis != 0:
        behind.append(_where_leading(fused, last, own.digits))
        *factors, last = factors
    return Fused(fused.grid, [*factors, _selected(last, 2, own.digits), *reversed(behind)])


def kept_columns(fused: Fused, own: Half) -> Fused:
    """The kept columns of a matrix, as a matrix on a smaller grid."""
    if len(fused.grid) == 1:
        return Fused((len(own.rows),), [_selected(fused.factors[0], 3, own.rows)])
    first, *factors = fused.factors
    before = []
    while first.axis != 0:
        before.append(_where_leading(fused, first, own.digits))
        first, *factors = factors
    return Fused((len(own.digits), *fused.grid[1:]), [*before, _selected(first, 3, own.digits), *factors])


def _selected(factor: Factor, dim: int, chosen: Tensor) -> Factor:
    return Factor(factor.axis, factor.blocks.index_select(dim, chosen))


def _where_leading(fused: Fused, factor: Factor, digits: Tensor) -> Factor:
    """The blocks of a later axis that act where the first axis has one of some digits."""
    between = prod(fused.grid[1 : factor.axis])
    blocks = factor.blocks.unflatten(0, (fused.grid[0], between)).index_select(0, digits)
    return Factor(factor.axis, blocks.flatten(0, 1))
