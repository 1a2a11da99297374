"""Causal by its factors: K-matrices whose blocks are all lower triangular."""

import copy

import dense
import pytest
import torch

from xdnas import KMatrix
from xdnas.warmstart import pointwise

SIZES = [2, 3, 5, 8, 12, 30, 45, 64, 75]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("increasing", [False, True])
def test_products_of_triangular_blocks_are_triangular(n: int, depth: int, increasing: bool) -> None:
    generator = torch.Generator().manual_seed(n)
    k = KMatrix(
        n, depth, "random", triangular=True, increasing_stride=increasing, generator=generator, dtype=torch.float64
    )
    torch.testing.assert_close(k.dense(), dense.kmatrix(k), rtol=1e-12, atol=1e-12)
    dense.perturb(k, 1.0)
    matrix = k.dense()
    assert (matrix.triu(1) == 0).all()
    assert (matrix.diagonal() != 0).all()
    x = torch.randn(n, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(k(x), matrix @ x.to(matrix.dtype), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_positions_within_a_block_increase(n: int) -> None:
    """Why: one triangular block puts no entry above the diagonal of the whole."""
    k = KMatrix(n, 1, "identity", dtype=torch.float64)
    full = copy.deepcopy(k)
    with torch.no_grad():
        for factor in full.butterflies()[0]:
            factor.copy_(torch.ones_like(factor).tril())
    assert (dense.kmatrix(full).triu(1) == 0).all()


def test_no_gradient_reaches_the_entries_above() -> None:
    k = KMatrix(12, 2, "random", triangular=True, dtype=torch.float64)
    (grad,) = torch.autograd.grad(k.dense().abs().sum(), k.factors)
    assert ((grad != 0) == (k.factors != 0)).all()
    assert (k.factors == 0).any()
    assert copy.deepcopy(k).triangular
    assert "triangular=True" in repr(k)


@pytest.mark.parametrize("n", [2, 6, 15, 64])
@pytest.mark.parametrize("depth", [(1, 1, 1), (3, 2, 1), (2, 3, 3)])
def test_the_start_is_the_product_with_the_tap_at_position_0(n: int, depth: tuple[int, int, int]) -> None:
    K, L, M = (k.dense() for k in pointwise([n], depth, dtype=torch.float64))
    w, x = torch.randn(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    y = K @ ((L @ w.to(L.dtype)) * (M @ x.to(M.dtype)))
    assert torch.equal(y, (w[0] * x).to(y.dtype))
    ones = torch.zeros(n, n, dtype=torch.complex128)
    ones[:, 0] = 1
    assert torch.equal(L, ones)


def test_the_operation_stays_causal_under_training() -> None:
    start = pointwise([30], (2, 2, 2), dtype=torch.float64)
    for kronecker in start:
        dense.perturb(kronecker, 0.3)
    K, L, M = (k.dense() for k in start)
    w = torch.randn(30, dtype=L.dtype)
    assert (L.triu(1) != 0).any()
    assert ((K @ torch.diag(L @ w) @ M).triu(1) == 0).all()
