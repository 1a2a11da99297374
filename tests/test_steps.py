"""Stages of block factors, and their gradients, are products with dense complex matrices."""

from functools import partial, reduce
from itertools import product
from math import prod
from typing import NamedTuple

import dense
import pytest
import torch
from torch import Tensor

from xdnas import KMatrix
from xdnas.fused import Factor, Fused, split_digits
from xdnas.geometry import Positions
from xdnas.planes import real_matrices
from xdnas.spectrum import half, kept_columns, kept_rows
from xdnas.stages import analysis, synthesis
from xdnas.steps import Stage, run, run_back


class Case(NamedTuple):
    """Sizes of the matrices and of the signal, what is read of the output, and how the matrices are fused."""

    n: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Positions, ...]
    depth: int = 1
    dense_up_to: int = 1
    largest: int = 64
    planes: int = 1


CASES = [
    Case((12,), (12,), (Positions(0, 1, 12),), dense_up_to=64),
    Case((12,), (5,), (Positions(7, -3, 9),), depth=2, dense_up_to=64),
    Case((96,), (96,), (Positions(0, 1, 96),)),
    Case((96,), (60,), (Positions(0, 3, 32),), depth=2),
    Case((128,), (1,), (Positions(5, 2, 1),), depth=3, planes=2),
    Case((96,), (13,), (Positions(1, 7, 11),), depth=3, largest=4, planes=2),
    Case((6, 8), (5, 8), (Positions(4, 1, 4), Positions(7, -2, 3)), depth=2, dense_up_to=64),
    Case((12, 12), (5, 12), (Positions(0, 1, 12), Positions(0, 2, 5)), largest=4),
    Case((12, 6), (12, 4), (Positions(0, 3, 4), Positions(1, 1, 4)), depth=2, largest=4, planes=2),
    Case((6, 12), (3, 7), (Positions(5, 1, 3), Positions(0, 1, 10)), depth=3, dense_up_to=6, largest=4),
    Case((4, 2, 3), (3, 2, 2), (Positions(0, 2, 2), Positions(0, 1, 1), Positions(2, 1, 3)), depth=3, dense_up_to=64),
    Case((6, 4, 8), (6, 3, 5), (Positions(0, 2, 3), Positions(0, 1, 4), Positions(1, 2, 3)), largest=3, planes=2),
    Case((6, 8, 6), (4, 8, 2), (Positions(1, 2, 2), Positions(0, 5, 2), Positions(0, 1, 6)), depth=2, largest=4),
]


def close(a: Tensor | None, b: Tensor) -> None:
    assert a is not None
    assert a.shape == b.shape
    assert (a - b).abs().max() <= 1e-12 * b.abs().max()


def matrices(case: Case, monkeypatch: pytest.MonkeyPatch, *, up: bool) -> tuple[list[Fused], list[Tensor]]:
    """Fused random K-matrices whose blocks are leaves, and their dense twins."""
    monkeypatch.setattr("xdnas.fused.split_digits", partial(split_digits, largest=case.largest))
    generator = torch.Generator().manual_seed(sum(case.n))
    fused, twins = [], []
    for n in case.n:
        identity = torch.eye(n, dtype=torch.complex128)
        k = KMatrix(n, case.depth, "random", increasing_stride=up, generator=generator, dtype=torch.float64)
        grid, factors = k.fused(case.dense_up_to)
        assert (len(factors) == 1) == (n <= case.dense_up_to)
        fused.append(Fused(grid, [Factor(axis, blocks.detach().requires_grad_()) for axis, blocks in factors]))
        twins.append(reduce(lambda done, own: placed(own.blocks) @ done, fused[-1].factors, identity))
        close(twins[-1], dense.kmatrix(k))
    return fused, twins


def placed(blocks: Tensor) -> Tensor:
    """Blocks (before, behind, R, R) of one axis as a dense matrix."""
    before, behind, radix, _ = blocks.shape
    eyes = torch.eye(before).to(blocks), torch.eye(behind).to(blocks)
    return torch.einsum("bhrc,bx,hy->brhxcy", blocks, *eyes).reshape(2 * (before * radix * behind,))


def as_complex(signal: Tensor) -> Tensor:
    """(N, planes, T) as (N, T)."""
    return torch.complex(signal[:, 0], signal[:, 1] if signal.shape[1] == 2 else torch.zeros_like(signal[:, 0]))


def as_planes(signal: Tensor) -> Tensor:
    return torch.view_as_real(signal).movedim(-1, 1)


def check(own: tuple[tuple[Stage, ...], list[Tensor]], x: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """The value, and the gradients of x, of the leaves, and of the real matrices between, each where needed."""
    stages, tensors = own
    y = run(stages, x, tensors).reshape(wanted.shape)
    close(y, wanted)
    cotangent = torch.randn_like(y)
    by_run = torch.autograd.grad(y, [x, *tensors], cotangent, retain_graph=True)
    by_twin = torch.autograd.grad(wanted, [x, *leaves], cotangent, retain_graph=True)
    by_x, *by_tensors = run_back(stages, x, tensors, cotangent, [True] * len(by_run))
    for each, twin in zip([by_x, *torch.autograd.grad(tensors, leaves, by_tensors)], by_twin, strict=True):
        close(each, twin)
    count = len(by_run)
    for needed in product([False, True], repeat=count) if count < 8 else torch.eye(count).bool().tolist():
        result = run_back(stages, x, tensors, cotangent, needed)
        for each, twin, need in zip(result, by_run, needed, strict=True):
            if need:
                close(each, twin)
            else:
                assert each is None


@pytest.mark.parametrize("case", CASES)
def test_the_analysis_is_the_kronecker_product(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    fused, twins = matrices(case, monkeypatch, up=False)
    x = torch.randn(case.planes, prod(case.inputs), 3, dtype=torch.float64, requires_grad=True)
    whole = reduce(torch.kron, [twin[:, :size] for twin, size in zip(twins, case.inputs, strict=True)])
    wanted = as_planes(whole @ as_complex(x.movedim(0, 1)))
    check(analysis(fused, case.inputs, case.planes), x, wanted, [f.blocks for own in fused for f in own.factors])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("up", [True, False])
def test_the_synthesis_is_the_real_part(case: Case, up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fused, twins = matrices(case, monkeypatch, up=up)
    y = torch.randn(prod(case.n), 2, 3, dtype=torch.float64, requires_grad=True)
    places = [at.indices(n, y.device) for at, n in zip(case.outputs, case.n, strict=True)]
    whole = reduce(torch.kron, [twin[own] for twin, own in zip(twins, places, strict=True)])
    blocks = [f.blocks for own in fused for f in own.factors]
    check(synthesis(fused, case.outputs), y, (whole @ as_complex(y)).real, blocks)


@pytest.mark.parametrize("n", [96, 128, 1000])
def test_the_fourier_transform_of_a_short_signal_and_back(n: int) -> None:
    x = torch.randn(n * 2 // 3, 2, dtype=torch.float64)
    dft, idft = (KMatrix(n, 1, init, normalized=False, dtype=torch.float64) for init in ("dft", "idft"))
    stages, tensors = analysis([dft.fused()], [x.shape[0]])
    transformed = run(stages, x, tensors)
    close(as_complex(transformed), torch.fft.fft(x, n, 0)[dft.frequencies])
    stages, tensors = synthesis([idft.fused()], [Positions(1, 3, n // 5)])
    close(run(stages, transformed, tensors).flatten(0, 2), x[1::3][: n // 5])


@pytest.mark.parametrize(("n", "depth"), [(30, 2), (96, 1), (128, 3)])
def test_half_of_a_spectrum_is_its_rows_and_columns(n: int, depth: int) -> None:
    own = half((n,), torch.device("cpu"))
    m, k = (KMatrix(n, depth, "random", increasing_stride=up, dtype=torch.float64) for up in (False, True))
    x = torch.randn(n // 2, 2, dtype=torch.float64, requires_grad=True)
    wanted = as_planes(dense.kmatrix(m)[own.rows, : n // 2] @ x.to(torch.complex128))
    check(analysis([kept_rows(m.fused(), own)], [n // 2]), x, wanted, [m.factors])
    y = torch.randn(len(own.rows), 2, 2, dtype=torch.float64, requires_grad=True)
    wanted = (dense.kmatrix(k)[1::2, own.rows] @ as_complex(y)).real
    check(synthesis([kept_columns(k.fused(), own)], [Positions(1, 2, n // 2)]), y, wanted, [k.factors])


@pytest.mark.parametrize(("planes_out", "planes_in"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(("above", "inside"), [(False, False), (False, True), (True, False), (True, True)])
def test_real_matrices_are_complex_ones(planes_out: int, planes_in: int, above: bool, inside: bool) -> None:
    blocks = torch.randn(3, 4, 5, dtype=torch.complex128, requires_grad=True)
    x = torch.randn(3, 5, planes_in, 2, dtype=torch.float64)
    matrix = real_matrices(blocks, planes_out, planes_in, rows_inside=not above, columns_inside=inside)
    y = matrix @ (x if inside else x.transpose(1, 2)).flatten(1, 2)
    y = y.unflatten(1, (planes_out, 4)).transpose(1, 2) if above else y.unflatten(1, (4, planes_out))
    whole = blocks @ as_complex(x.flatten(0, 1)).unflatten(0, (3, 5))
    wanted = torch.view_as_real(whole).movedim(-1, 2)[:, :, :planes_out]
    close(y, wanted)
    cotangent = torch.randn_like(y)
    close(torch.autograd.grad(y, blocks, cotangent)[0], torch.autograd.grad(wanted, blocks, cotangent)[0])
