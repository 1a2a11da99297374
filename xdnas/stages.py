"""Fused K-matrices as the stages of a signal's way through the operation, and the real matrices of their steps."""

from collections.abc import Sequence

from torch import Tensor

from xdnas.fused import Factor, Fused
from xdnas.geometry import Positions
from xdnas.planes import COMPLEX, REAL, real_matrices
from xdnas.steps import Stage, Step


def analysis(
    matrices: Sequence[Fused], sizes: Sequence[int], planes: int = REAL
) -> tuple[tuple[Stage, ...], list[Tensor]]:
    """Stages that apply one matrix to each axis of a signal of `sizes`, first axis first; missing positions are 0."""
    stages, tensors, lead = [], [], 1
    for fused, size in zip(matrices, sizes, strict=True):
        behind = fused.n // fused.grid[0]
        steps, own = _steps(fused, (-(-size // behind), *fused.grid[1:]), planes, COMPLEX, analyses=True)
        stages.append(Stage(lead, size, steps, None))
        tensors += own
        lead *= fused.rows
        planes = COMPLEX
    return tuple(stages), tensors


def synthesis(matrices: Sequence[Fused], outputs: Sequence[Positions]) -> tuple[tuple[Stage, ...], list[Tensor]]:
    """Stages that apply one matrix to each axis of the frequencies, the last axis first, and keep some positions."""
    stages: list[Stage] = []
    tensors: list[Tensor] = []
    lead = 1
    for i, (fused, positions) in enumerate(zip(matrices, outputs, strict=True)):
        fused, kept = _rows(fused, positions)
        steps, own = _steps(fused, fused.grid, COMPLEX, REAL if i == 0 else COMPLEX, analyses=False)
        stages.insert(0, Stage(lead, fused.n, steps, kept))
        tensors = own + tensors
        lead *= fused.n
    return tuple(stages), tensors


def single(matrix: Tensor) -> Fused:
    """One dense matrix (n', n) as it is."""
    return Fused((matrix.shape[1],), [Factor(0, matrix[None, None])])


def _rows(fused: Fused, positions: Positions) -> tuple[Fused, Positions]:
    """The part of the matrix that the positions need, and the positions in it."""
    if len(fused.grid) == 1:
        matrix = positions.take(fused.factors[0].blocks[0, 0], 0)
        return single(matrix), Positions(0, 1, positions.number)
    if not positions.within(fused.rows):
        return fused, positions
    last = positions.start + positions.step * (positions.number - 1)
    *before, (axis, blocks) = fused.factors
    if axis == 0:
        blocks = blocks[:, :, : last // blocks.shape[1] + 1]
    return Fused(fused.grid, [*before, Factor(axis, blocks)]), positions


def _steps(
    fused: Fused, grid: tuple[int, ...], planes: int, planes_out: int, *, analyses: bool
) -> tuple[tuple[Step, ...], list[Tensor]]:
    steps, tensors = [], []
    last = len(fused.factors) - 1
    for i, (axis, blocks) in enumerate(fused.factors):
        rows = blocks.shape[2]
        out = planes_out if i == last else COMPLEX
        step = Step(grid, axis, planes, out, rows, analyses and i == 0, analyses and i == last)
        blocks = blocks[..., : grid[axis]].flatten(0, 1)
        tensors.append(
            real_matrices(blocks, out, planes, rows_inside=step.rows_inside, columns_inside=not step.planes_first)
        )
        steps.append(step)
        grid, planes = (*grid[:axis], rows, *grid[axis + 1 :]), COMPLEX
    return tuple(steps), tensors
