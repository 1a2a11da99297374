"""K-matrices applied along the axes of a signal in real arithmetic, step by step, without copies where layouts allow.

A step is one block factor: it contracts one axis of a grid (see fused.py) together with the planes of the signal (see
planes.py). Its rows are laid out so that the next step finds its own contraction at one stride. A stage is one K-matrix
on one axis. In front of a stage of the analysis the signal is (lead, planes, N, trail), behind it (lead n, 2, trail):
`lead` counts the frequencies of the axes that are done, `trail` everything that follows. The synthesis goes back.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from xdnas.geometry import Positions
from xdnas.planes import COMPLEX

T = TypeVar("T")


class Step(NamedTuple):
    """A product along one axis of a signal (lead, planes, *grid, trail).

    Its matrices are (1 or the product of the other axes, planes_out rows, planes columns).
    """

    grid: tuple[int, ...]
    axis: int
    planes: int
    planes_out: int
    rows: int
    planes_first: bool
    rows_inside: bool

    @property
    def others(self) -> tuple[int, ...]:
        """The axes of the grid that are not contracted."""
        return self.grid[: self.axis] + self.grid[self.axis + 1 :]

    def value(self, x: Tensor, matrices: Tensor) -> Tensor:
        """The product."""
        return self._spread(products(matrices, self._seen(x), x.shape[0]), x.shape[0])

    def gradients(self, x: Tensor, matrices: Tensor, grad: Tensor, needed: tuple[bool, bool]) -> list[Tensor | None]:
        """Of x and of the matrices."""
        lead, own = x.shape[0], self._gathered(grad)
        by_x = self._unseen(products(matrices.mT, own, lead), lead) if needed[0] else None
        by_matrices = _by_matrices(own, self._seen(x), matrices.shape[0], lead) if needed[1] else None
        return [by_x, by_matrices]

    def _seen(self, x: Tensor) -> Tensor:
        seen = x.movedim(2 + self.axis, -2).movedim(1, -3 if self.planes_first else -2)
        return seen.reshape(x.shape[0] * prod(self.others), self.planes * self.grid[self.axis], x.shape[-1])

    def _unseen(self, x: Tensor, lead: int) -> Tensor:
        radix, trail = self.grid[self.axis], x.shape[-1]
        if self.planes_first:
            x = x.view(lead, *self.others, self.planes, radix, trail).movedim(-3, 1)
        else:
            x = x.view(lead, *self.others, radix, self.planes, trail).movedim(-2, 1)
        return x.movedim(-2, 2 + self.axis)

    def _spread(self, y: Tensor, lead: int) -> Tensor:
        trail = y.shape[-1]
        if self.rows_inside:
            y = y.view(lead, *self.others, self.rows, self.planes_out, trail).movedim(-2, 1)
        else:
            y = y.view(lead, *self.others, self.planes_out, self.rows, trail).movedim(-3, 1)
        return y.movedim(-2, 2 + self.axis)

    def _gathered(self, grad: Tensor) -> Tensor:
        own = grad.movedim(2 + self.axis, -2).movedim(1, -2 if self.rows_inside else -3)
        return own.reshape(grad.shape[0] * prod(self.others), self.planes_out * self.rows, grad.shape[-1])


def products(matrices: Tensor, x: Tensor, lead: int) -> Tensor:
    """Matrices (P, R, C), for each of `lead`, times x (lead P, C, T)."""
    count = matrices.shape[0]
    if count == 1:
        return (
            torch.mm(matrices[0], x[0])[None] if x.shape[0] == 1 else torch.bmm(matrices.expand(x.shape[0], -1, -1), x)
        )
    if lead > 1:
        matrices = matrices.expand(lead, -1, -1, -1).reshape(lead * count, *matrices.shape[1:])
    return torch.bmm(matrices, x)


def _by_matrices(grad: Tensor, x: Tensor, count: int, lead: int) -> Tensor:
    if count == 1 and x.shape[0] > 1:
        # adds up the products without keeping them
        return torch.addbmm(grad.new_zeros(grad.shape[1], x.shape[1]), grad, x.mT)[None]
    each = torch.bmm(grad, x.mT)
    return each.view(lead, count, *each.shape[1:]).sum(0) if lead > 1 else each


class Stage(NamedTuple):
    """One K-matrix along one axis; `kept` tells which of the rows of a synthesis stand in the output."""

    lead: int
    size: int
    steps: tuple[Step, ...]
    kept: Positions | None

    def value(self, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """The signal behind the stage."""
        y = self._open(x)
        for step, own in zip(self.steps, matrices, strict=True):
            y = step.value(y, own)
        return self._close(y)

    def gradients(
        self, x: Tensor, matrices: Sequence[Tensor], grad: Tensor, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """Of x (in its shape) and of each matrix; what was between the steps is computed again."""
        seen = [self._open(x)]
        for step, own in zip(self.steps[:-1], matrices, strict=False):
            seen.append(step.value(seen[-1], own))
        g = self._close_gradient(grad)
        by_matrices: list[Tensor | None] = []
        for i in reversed(range(len(self.steps))):
            before = any(needed[: i + 1])
            by_x, by_own = self.steps[i].gradients(seen.pop(), matrices[i], g, (before, needed[i + 1]))
            by_matrices.insert(0, by_own)
            if by_x is None:
                return [None, *(None,) * i, *by_matrices]
            g = by_x
        return [self._open_gradient(g).reshape(x.shape), *by_matrices]

    @property
    def _grid(self) -> tuple[int, ...]:
        return self.steps[0].grid

    def _open(self, x: Tensor) -> Tensor:
        own = (self.steps[0].planes, self.size)
        trail = x.numel() // prod((self.lead, *own))
        if self.kept is not None:
            return x.reshape(self.lead, *self._grid, COMPLEX, trail).movedim(-2, 1)
        x = x.reshape(self.lead, *own, trail)
        missing = prod(self._grid) - self.size
        return (F.pad(x, (0, 0, 0, missing)) if missing else x).reshape(*x.shape[:2], *self._grid, x.shape[-1])

    def _open_gradient(self, grad: Tensor) -> Tensor:
        if self.kept is not None:
            return grad.movedim(1, -2)
        return grad.reshape(*grad.shape[:2], -1, grad.shape[-1])[:, :, : self.size]

    def _close(self, y: Tensor) -> Tensor:
        if self.kept is None:
            return y.movedim(1, -2).reshape(y.shape[0] * prod(y.shape[2:-1]), COMPLEX, y.shape[-1])
        y = y.reshape(*y.shape[:2], prod(y.shape[2:-1]), y.shape[-1])
        return y if self.kept == Positions(0, 1, y.shape[2]) else self.kept.take(y, 2)

    def _close_gradient(self, grad: Tensor) -> Tensor:
        last = self.steps[-1]
        grid = (*last.grid[: last.axis], last.rows, *last.grid[last.axis + 1 :])
        if self.kept is None:
            return grad.reshape(self.lead, *grid, COMPLEX, -1).movedim(-2, 1)
        grad = grad.reshape(self.lead, last.planes_out, self.kept.number, -1)
        if self.kept != Positions(0, 1, prod(grid)):
            grad = self.kept.give(grad, 2, prod(grid))
        return grad.reshape(*grad.shape[:2], *grid, grad.shape[-1])


def run(stages: Sequence[Stage], x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """All stages, one after the other."""
    for stage, own in zip(stages, _shares(stages, matrices), strict=True):
        x = stage.value(x, own)
    return x


def run_back(
    stages: Sequence[Stage], x: Tensor, matrices: Sequence[Tensor], grad: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of x and of every matrix; `needed` tells which."""
    shares = _shares(stages, matrices)
    signals = [x]
    for stage, own in zip(stages[:-1], shares, strict=False):
        signals.append(stage.value(signals[-1], own))
    wanted = _shares(stages, needed[1:])
    result: list[Tensor | None] = []
    for i in reversed(range(len(stages))):
        before = needed[0] or any(any(w) for w in wanted[:i])
        by_x, *by_own = stages[i].gradients(signals.pop(), shares[i], grad, [before, *wanted[i]])
        result = [*by_own, *result]
        if by_x is None:
            return [None] * (1 + len(matrices) - len(result)) + result
        grad = by_x
    return [grad, *result]


def _shares(stages: Sequence[Stage], items: Sequence[T]) -> list[Sequence[T]]:
    result, start = [], 0
    for stage in stages:
        result.append(items[start : start + len(stage.steps)])
        start += len(stage.steps)
    return result
