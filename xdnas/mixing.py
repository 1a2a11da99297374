"""The mix of the channels at every frequency, with diagonals that are made where they are used.

The diagonals C (L w + b) of all pairs of channels are often the largest tensor of an XD-operation, several times the
signal. They are one product away from the kernel, so they are made for a few frequencies at a time, while they fit in
the processor's cache, and made again for the gradients.

Diagonals are side (1 or lead, 2 n, k) times taps (lead, k, pairs), for F = lead n frequencies; the pairs of channels
are in the order (groups, I / groups, O / groups).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from xdnas.limits import limit
from xdnas.multilinear import refuse_batch

BLOCK = 1 << 18  # numbers of the diagonals at a time, for each thread


class _Block(NamedTuple):
    """Some leading frequencies (all of one axis's, or of one), and some of the last axis."""

    lead: slice
    last: slice

    def of(self, x: Tensor, n: int) -> Tensor:
        """This part of x (lead n, ...)."""
        return x[self.lead.start * n + self.last.start : (self.lead.stop - 1) * n + self.last.stop]

    def side(self, side: Tensor) -> Tensor:
        """This part of the sides, (1 or leads, 2 n, k)."""
        return side[self.lead if side.shape[0] > 1 else slice(None), 2 * self.last.start : 2 * self.last.stop]


def _blocks(taps: Tensor, n: int) -> Iterator[_Block]:
    lead, _, pairs = taps.shape
    whole, most = 2 * n * pairs, limit(BLOCK * torch.get_num_threads(), taps)
    leads, lasts = (max(1, most // whole), n) if whole <= most else (1, max(1, most // (2 * pairs)))
    for a in range(0, lead, leads):
        for f in range(0, n, lasts):
            yield _Block(slice(a, min(a + leads, lead)), slice(f, min(f + lasts, n)))


def diagonals(side: Tensor, taps: Tensor) -> Tensor:
    """(F, 2, pairs)."""
    lead, _, pairs = taps.shape
    product = side[0] @ taps[0] if lead == 1 else torch.bmm(side.expand(lead, -1, -1), taps)
    return product.view(-1, 2, pairs)


class Mixing(NamedTuple):
    """x (F, 2, B, I), side and taps to (F, 2, B, O): the sum over input channels."""

    groups: int

    def value(self, x: Tensor, side: Tensor, taps: Tensor) -> Tensor:
        """The product, block by block."""
        n, pairs = side.shape[1] // 2, taps.shape[2]
        y = x.new_empty(*x.shape[:3], pairs * self.groups // x.shape[3])
        for block in _blocks(taps, n):
            mix(block.of(x, n), diagonals(block.side(side), taps[block.lead]), self.groups, out=block.of(y, n))
        return y

    def gradients(
        self, grad: Tensor, needed: Sequence[bool], x: Tensor, side: Tensor, taps: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Of x, side and taps, block by block."""
        refuse_batch(grad)
        n, pairs = side.shape[1] // 2, taps.shape[2]
        by_x = torch.empty_like(x) if needed[0] else None
        totals = (torch.zeros_like(side), torch.zeros_like(taps)) if needed[1] or needed[2] else None
        for block in _blocks(taps, n):
            left, right = block.side(side), taps[block.lead]
            own = _grouped(block.of(grad, n), self.groups)
            if by_x is not None:
                _mix_back(own, diagonals(left, right), self.groups, out=block.of(by_x, n))
            if totals is not None:
                by_d = _by_diagonals(own, block.of(x, n), self.groups).reshape(right.shape[0], -1, pairs)
                _add_factors(by_d, left, right, block, *totals)
        by_side, by_taps = totals or (None, None)
        return by_x, by_side if needed[1] else None, by_taps if needed[2] else None


class FixedMixing(NamedTuple):
    """x (F, 2, B, I) and diagonals (F, 2, pairs) to (F, 2, B, O)."""

    groups: int

    def value(self, x: Tensor, diagonals: Tensor) -> Tensor:
        """The product, a few frequencies at a time."""
        y = x.new_empty(*x.shape[:3], diagonals.shape[2] * self.groups // x.shape[3])
        for part in _parts(diagonals):
            mix(x[part], diagonals[part], self.groups, out=y[part])
        return y

    def gradients(
        self, grad: Tensor, needed: Sequence[bool], x: Tensor, diagonals: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Of x and the diagonals."""
        refuse_batch(grad)
        by_x = torch.empty_like(x) if needed[0] else None
        by_d = torch.empty_like(diagonals) if needed[1] else None
        for part in _parts(diagonals):
            own = _grouped(grad[part], self.groups)
            if by_x is not None:
                _mix_back(own, diagonals[part], self.groups, out=by_x[part])
            if by_d is not None:
                by_d[part] = _by_diagonals(own, x[part], self.groups)
        return by_x, by_d


def _parts(diagonals: Tensor) -> Iterator[slice]:
    size = max(1, limit(BLOCK * torch.get_num_threads(), diagonals) // (2 * diagonals.shape[2]))
    return (slice(start, start + size) for start in range(0, diagonals.shape[0], size))


def _mix_back(grad: Tensor, diagonals: Tensor, groups: int, out: Tensor) -> None:
    """The gradient of x, `out` (F, 2, B, I), from that of the mix, grouped."""
    matrices = _matrices(diagonals, groups, out.shape[3])
    _turned_back(torch.bmm(grad, matrices.mT), out=_split(out, groups))


def _by_diagonals(grad: Tensor, x: Tensor, groups: int) -> Tensor:
    """The gradient of the diagonals (F, 2, pairs) from that of the mix, grouped."""
    by_matrices = torch.bmm(_both_turns(x, groups).mT, grad)
    return by_matrices.view(x.shape[0], groups, 2, -1).transpose(1, 2).reshape(x.shape[0], 2, -1)


def _add_factors(by_d: Tensor, left: Tensor, right: Tensor, block: _Block, by_side: Tensor, by_taps: Tensor) -> None:
    """Add the gradients of a block's factors to the whole."""
    by_taps[block.lead].baddbmm_(left.mT.expand(by_d.shape[0], -1, -1), by_d)
    own = block.side(by_side)
    if by_side.shape[0] > 1:
        own += torch.bmm(by_d, right.mT)
    else:
        own[0].addbmm_(by_d, right.mT)


def mix(x: Tensor, diagonals: Tensor, groups: int, out: Tensor | None = None) -> Tensor:
    """x (F, 2, B, I) with diagonals (F, 2, pairs): (F, 2, B, O)."""
    frequencies, _, batch, inputs = x.shape
    turns, matrices = _both_turns(x, groups), _matrices(diagonals, groups, inputs)
    own = matrices.shape[2]
    if groups == 1 and out is not None:
        torch.bmm(turns, matrices, out=out.view(frequencies, 2 * batch, own))
        return out
    y = torch.bmm(turns, matrices)
    if groups == 1:
        return y.view(frequencies, 2, batch, own)
    y = y.view(frequencies, groups, 2, batch, own).permute(0, 2, 3, 1, 4)
    return y.reshape(frequencies, 2, batch, groups * own) if out is None else out.view_as(y).copy_(y)


def _both_turns(x: Tensor, groups: int) -> Tensor:
    """x (F, 2, B, I) and i x beside each other, as real matrices (F groups, 2 B, 2 I / groups)."""
    frequencies, _, batch, inputs = x.shape
    own = _split(x, groups)
    both = torch.stack((own, torch.stack((-own[:, :, 1], own[:, :, 0]), 2)), 4)
    return both.view(frequencies * groups, 2 * batch, 2 * inputs // groups)


def _turned_back(turns: Tensor, out: Tensor) -> None:
    """The gradient of x (F, groups, 2, B, I / groups) from that of its turns."""
    frequencies, groups, _, batch, own = out.shape
    turns = turns.view(frequencies, groups, 2, batch, 2, own)
    torch.add(turns[:, :, 0, :, 0], turns[:, :, 1, :, 1], out=out[:, :, 0])
    torch.sub(turns[:, :, 1, :, 0], turns[:, :, 0, :, 1], out=out[:, :, 1])


def _split(x: Tensor, groups: int) -> Tensor:
    """(F, 2, B, C) seen as (F, groups, 2, B, C / groups)."""
    return x.view(*x.shape[:3], groups, x.shape[3] // groups).permute(0, 3, 1, 2, 4)


def _grouped(grad: Tensor, groups: int) -> Tensor:
    """(F, 2, B, O) as (F groups, 2 B, O / groups)."""
    return _split(grad, groups).reshape(grad.shape[0] * groups, 2 * grad.shape[2], grad.shape[3] // groups)


def _matrices(diagonals: Tensor, groups: int, inputs: int) -> Tensor:
    """Diagonals (F, 2, pairs) as real matrices (F groups, 2 I / groups, O / groups)."""
    frequencies, own = diagonals.shape[0], inputs // groups
    return diagonals.view(frequencies, 2, groups, own, -1).transpose(1, 2).reshape(frequencies * groups, 2 * own, -1)
