import copy
import pickle
from pathlib import Path

import dense
import pytest
import torch
from safetensors.torch import load_file, save_file

from xdnas import KMatrix, Kronecker
from xdnas.transforms import good_size, is_good_size, radices

SIZES = [2, 3, 5, 6, 8, 30, 36, 64, 85, 96, 100, 128, 150, 256]
GOOD = [n for n in SIZES if is_good_size(n)]


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-12) -> None:
    assert (a - b).abs().max() <= tolerance * b.abs().max().clamp_min(1)


@pytest.mark.parametrize("n", GOOD)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("increasing", [False, True])
def test_dense_and_apply_equal_the_product_of_sparse_factors(n: int, depth: int, increasing: bool) -> None:
    generator = torch.Generator().manual_seed(n + depth)
    k = KMatrix(n, depth, "random", increasing_stride=increasing, generator=generator, dtype=torch.float64)
    twin = dense.kmatrix(k)
    close(k.dense(), twin)
    x = torch.randn(2, n, 3, dtype=torch.complex128, generator=generator)
    close(k(x, dim=1), torch.einsum("ij,bjc->bic", twin, x))
    close(k(x.real, dim=-2), torch.einsum("ij,bjc->bic", twin, x.real.to(twin.dtype)))


@pytest.mark.parametrize("n", [6, 30, 128])
@pytest.mark.parametrize("depth", [1, 3])
def test_gradients_equal_those_of_the_dense_twin(n: int, depth: int) -> None:
    k = KMatrix(n, depth, "random", generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.randn(3, n, dtype=torch.complex128, requires_grad=True)
    cotangent = torch.randn(3, n, dtype=torch.complex128)
    fast = torch.autograd.grad((k(x) * cotangent).sum().abs(), [k.factors, x])
    slow = torch.autograd.grad((x @ dense.kmatrix(k).T * cotangent).sum().abs(), [k.factors, x])
    for a, b in zip(fast, slow, strict=True):
        close(a, b)


@pytest.mark.parametrize("n", GOOD)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_named_transforms(n: int, depth: int) -> None:
    def build(init: str, normalized: bool = True) -> KMatrix:
        return KMatrix(n, depth, init, normalized=normalized, dtype=torch.float64)

    fourier = torch.fft.fft(torch.eye(n, dtype=torch.complex128), dim=0)
    dft = build("dft")
    close(build("dft", normalized=False).dense(), fourier[dft.frequencies])
    close(dft.dense(), fourier[dft.frequencies] / n**0.5)
    close(build("idft").dense() @ dft.dense(), torch.eye(n).to(fourier.dtype))
    close(build("idft", normalized=False).dense(), torch.linalg.inv(fourier)[:, dft.frequencies])
    close(build("identity").dense(), torch.eye(n).to(fourier.dtype))


@pytest.mark.parametrize("n", [*GOOD, 1024])
@pytest.mark.parametrize(("depth", "increasing"), [(2, False), (3, False), (3, True), (4, True)])
def test_every_permutation(n: int, depth: int, increasing: bool) -> None:
    for seed in range(3):
        p = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        k = KMatrix(n, depth, p, increasing_stride=increasing, dtype=torch.float64)
        x = torch.arange(n, dtype=torch.float64)
        assert torch.equal(k(x), x[p].to(torch.complex128))


@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("increasing", [False, True])
def test_twiddle_round_trip(n: int, increasing: bool) -> None:
    k = KMatrix(n, 3, "random", increasing_stride=increasing, dtype=torch.float64)
    again = KMatrix.from_twiddle(k.twiddle, increasing_stride=increasing)
    assert torch.equal(again.factors, k.factors)
    assert k.twiddle.shape == (3, n.bit_length() - 1, n // 2, 2, 2)
    close(again.dense(), k.dense())


def test_a_lazy_conjugate_is_carried_out(tmp_path: Path) -> None:
    twiddle = KMatrix(8, dtype=torch.float64).twiddle.detach()
    k = KMatrix.from_twiddle(twiddle.conj())
    assert torch.equal(k.twiddle, twiddle.conj().resolve_conj())
    save_file(k.state_dict(), tmp_path / "k.safetensors")
    assert torch.equal(load_file(tmp_path / "k.safetensors")["factors"], k.factors)


def test_copies_equal_the_original() -> None:
    k = KMatrix(30, 2, "random")
    for twin in (copy.deepcopy(k), pickle.loads(pickle.dumps(k))):
        assert torch.equal(twin.dense(), k.dense())


def test_the_wider_precision_is_kept() -> None:
    k, x = KMatrix(12), torch.randn(2, 12, dtype=torch.float64)
    wanted = x.to(torch.complex128) @ k.dense().to(torch.complex128).T
    assert k(x).dtype == torch.complex128
    close(k(x), wanted)
    assert k.double()(x.float()).dtype == torch.complex128


def test_nothing_in_nothing_out() -> None:
    assert KMatrix(12)(torch.randn(0, 12)).shape == (0, 12)
    assert KMatrix(128)(torch.randn(3, 128, 0), dim=1).shape == (3, 128, 0)


def test_halves_are_widened() -> None:
    k = KMatrix(16).bfloat16()
    assert k(torch.randn(16)).dtype == torch.complex64
    assert KMatrix(16).double().dense().dtype == torch.complex128


@pytest.mark.parametrize("sizes", [(4, 6), (3, 5, 2)])
def test_kronecker(sizes: tuple[int, ...]) -> None:
    k = Kronecker(*(KMatrix(n, 1, "random", dtype=torch.float64) for n in sizes))
    x = torch.randn(2, *sizes, dtype=torch.complex128)
    close(k.dense(), dense.kronecker(k))
    close(k(x).flatten(1), x.flatten(1) @ dense.kronecker(k).T)
    assert list(k.state_dict()) == [f"{i}.factors" for i in range(len(sizes))]


def test_good_sizes() -> None:
    assert [good_size(n) for n in (1, 7, 34, 91, 97, 1024)] == [2, 8, 36, 96, 100, 1024]
    assert [good_size(n, power_of_two=True) for n in (1, 2, 3, 64, 65)] == [2, 2, 4, 64, 128]
    assert all(torch.tensor(radices(n)).prod() == n for n in range(2, 2000) if is_good_size(n))
