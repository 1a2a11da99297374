"""Products of butterfly factors, fused into few block-diagonal factors and applied as batched matrix products.

A factor of radix r at stride s costs r operations per element but a pass over memory of its own. Multiplied together
first, neighbouring factors become blocks of 8 to 128, which a matrix library applies at full speed. An axis of size n
is seen as a grid (R1, R2, ...) of runs of digits; a block factor mixes one axis of the grid. Nothing is ever permuted
in memory: the products read and write transposed views.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from xdnas.geometry import Positions
from xdnas.product import product
from xdnas.transforms import radices

LARGEST_BLOCK = 64


class Factor(NamedTuple):
    """Blocks (before, behind, R, R) on one axis of the grid; `before` and `behind` number the other grid positions."""

    axis: int
    blocks: Tensor


class Fused(NamedTuple):
    """A fused K-matrix: its grid, and its factors, first applied first."""

    grid: tuple[int, ...]
    factors: list[Factor]

    @property
    def n(self) -> int:
        """The size of the matrix."""
        return prod(self.grid)

    @property
    def rows(self) -> int:
        """The number of its rows; fewer than n where some were left out."""
        grid = list(self.grid)
        for axis, blocks in self.factors:
            grid[axis] = blocks.shape[2]
        return prod(grid)

    def to(self, dtype: torch.dtype) -> "Fused":
        """The same matrix in another complex dtype."""
        return Fused(self.grid, [Factor(axis, blocks.to(dtype)) for axis, blocks in self.factors])


def split_digits(n: int, largest: int = LARGEST_BLOCK) -> list[tuple[int, ...]]:
    """The digits of n in the fewest runs whose products are at most `largest`, as even as their order allows."""
    digits = radices(n)
    for parts in range(1, len(digits) + 1):
        runs = _even_split(digits, parts)
        if max(map(prod, runs)) <= largest:
            return runs
    return [(digit,) for digit in digits]


def _even_split(digits: tuple[int, ...], parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [digits]
    target = prod(digits) ** (1 / parts)
    ends = range(1, len(digits) - parts + 2)
    end = min(ends, key=lambda e: max(prod(digits[:e]) / target, target / prod(digits[:e])))
    return [digits[:end], *_even_split(digits[end:], parts - 1)]


def fuse(factors: Sequence[Sequence[Tensor]], increasing: Sequence[bool], n: int, dense_up_to: int) -> Fused:
    """Fuse butterflies, first applied first; factors[d] holds the blocks (n/r, r, r) of butterfly d in its order.

    One dense matrix if n <= dense_up_to, whatever the depth; else about one factor per run of digits and butterfly,
    since the last factor of a butterfly and the first of the next act on the same positions.
    """
    runs = [radices(n)] if n <= dense_up_to else split_digits(n)
    grid = tuple(map(prod, runs))
    result: list[Factor] = []
    for blocks, up in zip(factors, increasing, strict=True):
        by_digit = list(reversed(blocks)) if up else list(blocks)
        axes = range(len(runs))
        for axis in reversed(axes) if up else axes:
            begin = sum(map(len, runs[:axis]))
            own = by_digit[begin : begin + len(runs[axis])]
            product = _fuse_run(own, prod(grid[:axis]), prod(grid[axis + 1 :]), up)
            if result and result[-1].axis == axis:
                product = product @ result.pop().blocks
            result.append(Factor(axis, product))
    return Fused(grid, result)


def _fuse_run(blocks: Sequence[Tensor], before: int, behind: int, increasing: bool) -> Tensor:
    """The product of the factors of neighbouring digits: (before, behind, R, R)."""
    digits = [block.shape[-1] for block in blocks]
    size = prod(digits)
    total: Tensor | None = None
    order = range(len(digits))
    for i in reversed(order) if increasing else order:
        r, above, below = digits[i], prod(digits[:i]), prod(digits[i + 1 :])
        block = blocks[i].reshape(before, above, below, behind, r, r).permute(0, 3, 1, 2, 4, 5)
        if total is None:
            total = torch.eye(size, dtype=block.dtype, device=block.device).expand(before, behind, size, size)
        rows = total.reshape(before, behind, above, r, below, size).transpose(3, 4)
        total = (block @ rows).transpose(3, 4).reshape(before, behind, size, size)
    assert total is not None
    return total


def apply(fused: Fused, x: Tensor, kept: int | None = None) -> Tensor:
    """Apply along axis 1 of x (lead, N, trail); N <= n, the missing positions count as zeros.

    Returns (lead, kept, trail): the first `kept` positions, all n by default; often a view of other strides.
    """
    n, grid = fused.n, fused.grid
    kept = n if kept is None else kept
    lead, size, trail = x.shape
    behind = n // grid[0]
    columns = -(-size // behind)
    if size < columns * behind:
        x = torch.nn.functional.pad(x, (0, 0, 0, columns * behind - size))
    x = x.reshape(lead, columns, *grid[1:], trail)
    for i, (axis, blocks) in enumerate(fused.factors):
        top = -(-kept // behind) if axis == 0 and i == len(fused.factors) - 1 else blocks.shape[2]
        x = _mix(blocks[:, :, :top, : x.shape[1 + axis]], x, axis)
    return x.reshape(lead, prod(x.shape[1:-1]), trail)[:, :kept]


def _mix(blocks: Tensor, x: Tensor, axis: int) -> Tensor:
    """Multiply one axis of the grid x (lead, *grid, trail) by blocks (before, behind, R', R)."""
    shape = x.shape
    lead, before, behind, trail = shape[0], prod(shape[1 : 1 + axis]), prod(shape[2 + axis : -1]), shape[-1]
    radix, kept = shape[1 + axis], blocks.shape[2]
    seen = x.reshape(lead, before, radix, behind, trail).transpose(2, 3).reshape(lead * before * behind, radix, trail)
    y = product(blocks.expand(lead, -1, -1, -1, -1).reshape(lead * before * behind, kept, radix), seen)
    y = y.view(lead, before, behind, kept, trail).transpose(2, 3)
    return y.reshape(*shape[: 1 + axis], kept, *shape[2 + axis :])


def columns(fused: Fused, positions: Positions) -> Tensor:
    """Columns (n, number) of a matrix: all that a short kernel meets of L."""
    n, values = fused.n, fused.factors[0].blocks
    if len(fused.grid) == 1:
        return positions.take(values[0, 0], 1)
    places = positions.indices(n, values.device)
    units = (torch.arange(n, device=values.device)[:, None] == places).to(values.dtype)
    return apply(fused, units[None])[0]


def rows(fused: Fused, x: Tensor, positions: Positions) -> Tensor:
    """Some rows (lead, number, trail) of a matrix times x (lead, n, trail)."""
    if len(fused.grid) == 1:
        matrix = positions.take(fused.factors[0].blocks[0, 0], 0)
        return product(matrix.expand(x.shape[0], -1, -1), x)
    last = positions.start + positions.step * (positions.number - 1)
    return positions.take(apply(fused, x, min(last + 1, fused.n)), 1)
