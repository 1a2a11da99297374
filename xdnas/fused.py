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
from xdnas.transforms import radices

# both decide which frequencies a compact layer keeps (spectrum.py), so files of compact layers depend on them
LARGEST_BLOCK = 64
# one dense matrix per axis up to this size: with several axes block factors need copies that a matrix does not
DENSE_UP_TO = {1: 64, 2: 128, 3: 128}


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


def digit_runs(n: int, dense_up_to: int) -> list[tuple[int, ...]]:
    """The runs of digits that `fuse` makes one factor of each: all of them up to n = dense_up_to."""
    return [radices(n)] if n <= dense_up_to else split_digits(n)


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
    runs = digit_runs(n, dense_up_to)
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
    """The product of the factors of neighbouring digits: (before, behind, R, R).

    Every factor changes one digit, from its column to its row, while the others stay. So an entry of the product is a
    plain product of one entry of each factor, without sums.
    """
    size = prod([block.shape[-1] for block in blocks])
    total: Tensor | None = None
    done = 1
    for block in reversed(blocks) if increasing else blocks:
        r = block.shape[-1]
        left = size // (done * r)
        above, below = (left, done) if increasing else (done, left)
        block = block.reshape(before, above, below, behind, r, r)
        if increasing:  # digits behind this one are rows already: (before, behind, above, row, below, column, 1)
            block = block.permute(0, 3, 1, 4, 2, 5)[..., None]
            if total is not None:
                total = total.view(before, behind, left, r, done, done).transpose(3, 4)[:, :, :, None]
        else:  # digits before this one are rows already: (before, behind, above, row, 1, column, below)
            block = block.permute(0, 3, 1, 4, 5, 2)[:, :, :, :, None]
            if total is not None:
                total = total.view(before, behind, done, 1, done, r, left)
        total = block if total is None else total * block
        done *= r
        total = total.reshape(before, behind, *((left, done, done) if increasing else (done, done, left)))
    assert total is not None
    return total.view(before, behind, size, size)


def apply(fused: Fused, x: Tensor) -> Tensor:
    """Apply along axis 0 of x (n, T); often a view of other strides."""
    y = x.reshape(*fused.grid, x.shape[1])
    for axis, blocks in fused.factors:
        y = _mix(blocks, y, axis)
    return y.reshape(fused.rows, x.shape[1])


def _mix(blocks: Tensor, x: Tensor, axis: int) -> Tensor:
    """Multiply one axis of the grid x (*grid, T) by blocks (before, behind, R', R)."""
    before, behind, rows, radix = blocks.shape
    seen = x.reshape(before, radix, behind, x.shape[-1]).transpose(1, 2)
    y = (blocks @ seen).transpose(1, 2)
    return y.reshape(*x.shape[:axis], rows, *x.shape[axis + 1 :])


def columns(fused: Fused, positions: Positions) -> Tensor:
    """Columns (n, number) of a matrix: all that a short kernel meets of L."""
    values = fused.factors[0].blocks
    if len(fused.grid) == 1:
        return positions.take(values[0, 0], 1)
    places = positions.indices(fused.n, values.device)
    return apply(fused, (torch.arange(fused.n, device=values.device)[:, None] == places).to(values.dtype))
