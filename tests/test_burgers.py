import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch import Tensor

from xdnas.tasks import load
from xdnas.tasks.burgers_solver import FINEST, Problem, grid_points, random_fields, solve, time_steps
from xdnas.tasks.metrics import relative_l2

DEFAULT = Problem()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def values(spectrum: Tensor) -> Tensor:
    result: Tensor = torch.fft.irfft(spectrum)
    return result


def worst(a: Tensor, b: Tensor) -> float:
    return float(relative_l2(values(a), values(b)).max())


def cole_hopf(u: Tensor, problem: Problem) -> Tensor:
    """The exact solution: u = -2 nu phi_x / phi, where phi obeys the heat equation."""
    n, viscosity, time = u.shape[1], problem.viscosity, problem.final_time
    wave = 2 * math.pi / problem.length * torch.arange(n // 2 + 1, dtype=torch.float64)
    spectrum = torch.fft.rfft(u)
    integral = torch.where(wave > 0, spectrum / (1j * wave).where(wave > 0, torch.ones(())), 0)
    phi = torch.fft.rfft(torch.exp(-torch.fft.irfft(integral) / (2 * viscosity))) * torch.exp(
        -viscosity * wave**2 * time
    )
    solution: Tensor = -2 * viscosity * torch.fft.irfft(1j * wave * phi) / torch.fft.irfft(phi)
    return solution


@pytest.mark.parametrize(
    "problem", [DEFAULT, Problem(0.1, 1.0, 0.1), Problem(0.05, 4.0, 0.7), Problem(0.1, gamma=2.5, tau=7, sigma=49)]
)
def test_the_solution_is_that_of_the_cole_hopf_transform(problem: Problem) -> None:
    start = random_fields(range(2), 3, problem)
    exact = cole_hopf(values(start), problem)
    assert float(relative_l2(values(solve(start, problem)), exact).max()) < 1e-7


@pytest.mark.parametrize("problem", [DEFAULT, Problem(viscosity=0.02, final_time=0.5)])
def test_converged_in_step_and_resolution(problem: Problem) -> None:
    start = random_fields(range(2), 1, problem)
    end, size = solve(start, problem), grid_points(problem)
    assert worst(end, solve(start, problem, size=2 * size)) < 1e-7
    assert worst(end, solve(start, problem, steps=2 * time_steps(problem, size))) < 1e-7


def test_fourth_order_in_time() -> None:
    start = random_fields(range(1), 2, DEFAULT)
    reference = solve(start, DEFAULT, steps=800)
    errors = [worst(solve(start, DEFAULT, steps=s), reference) for s in (150, 300)]
    assert 3.5 < math.log2(errors[0] / errors[1]) < 4.5


def test_the_mean_is_kept_and_the_norm_falls() -> None:
    """Burgers' equation conserves momentum and loses energy."""
    start = random_fields(range(3), 4, DEFAULT)
    start[:, 0] = 0.3 * FINEST
    end = solve(start, DEFAULT)
    torch.testing.assert_close(values(end).mean(1), values(start).mean(1))
    assert (values(end).norm(dim=1) < values(start).norm(dim=1)).all()


def test_unstable_or_unresolved_solutions_are_refused() -> None:
    start = random_fields(range(3), 0, DEFAULT)
    with pytest.raises(ValueError, match="does not resolve 3 of 3 solutions"):
        solve(1000 * start, DEFAULT)
    mixed = torch.cat((start, 1000 * start[:1]))
    with pytest.raises(ValueError, match=r"does not resolve 1 of 4 solutions at viscosity 0\.1"):
        solve(mixed, DEFAULT)


def test_the_random_field_has_the_stated_spectrum() -> None:
    fields = values(random_fields(range(400), 0, DEFAULT))
    wave = 2 * math.pi * torch.arange(1, FINEST // 2 + 1)
    variance = 2 * 25**2 * ((wave**2 + 25) ** -2).sum()
    assert fields.mean(1).abs().max() < 1e-12
    assert abs(float(fields.square().mean()) / float(variance) - 1) < 0.1
    first = torch.fft.rfft(fields)[:, 1] * 2 / FINEST
    wanted = 2 * 25**2 / ((2 * math.pi) ** 2 + 25) ** 2
    for part in (first.real, first.imag):
        assert abs(float(part.square().mean()) / wanted - 1) < 0.25


def test_the_solution_keeps_most_of_its_norm_on_2_pi_and_little_on_1() -> None:
    x, y = load("burgers", train=1, valid=1, test=60, resolution=64).test.tensors
    assert 0.78 < float((y[:, 0].norm(dim=1) / x[:, 0].norm(dim=1)).mean()) < 0.86
    short = Problem(length=1.0)
    start = values(random_fields(range(60), 0, short))
    assert float((cole_hopf(start, short).norm(dim=1) / start.norm(dim=1)).mean()) < 0.03


def test_a_sample_does_not_depend_on_how_many_are_made() -> None:
    few, many = (load("burgers", train=n, valid=2, test=3) for n in (3, 5))
    for a, b in zip(few.train.tensors, many.train.tensors, strict=True):
        assert torch.equal(a, b[:3])
    assert torch.equal(few.test.tensors[1], many.test.tensors[1])
    other = load("burgers", train=3, valid=2, test=3, seed=1)
    assert not torch.equal(few.train.tensors[0], other.train.tensors[0])


def test_splits_are_different_samples_and_resolutions_are_the_same_functions() -> None:
    coarse, fine = (load("burgers", resolution=n, train=3, valid=3, test=3) for n in (64, 256))
    torch.testing.assert_close(coarse.train.tensors[1], fine.train.tensors[1][..., ::4])
    assert not torch.equal(fine.train.tensors[0], fine.valid.tensors[0])
    assert not torch.equal(fine.valid.tensors[0], fine.test.tensors[0])


def test_shapes_options_and_baselines() -> None:
    task = load("burgers", train=30, valid=5, test=20, resolution=64)
    x, y = task.train.tensors
    assert x.shape == (30, 2, 64)
    assert y.shape == (30, 1, 64)
    assert x.dtype == y.dtype == torch.float32
    torch.testing.assert_close(x[0, 1], torch.linspace(0, 2 * math.pi, 64))
    again = load(task.name, **task.options)
    assert torch.equal(again.test.tensors[0], task.test.tensors[0])
    assert task.baselines["input"] == pytest.approx(float(task.metric.values(*_pair(task.test.tensors)).mean()))
    assert task.baselines["linear Fourier filter"] < task.baselines["input"] < task.baselines["mean"]


def _pair(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    return tensors[0][:, :1], tensors[1]


def test_a_damaged_cache_is_told_and_made_again(own_cache: Path) -> None:
    first = load("burgers", train=2, valid=1, test=1, resolution=32)
    files = sorted(own_cache.iterdir())
    assert len(files) == 3
    for file in files:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged") as told:
        second = load("burgers", train=2, valid=1, test=1, resolution=32)
    assert len(told) == 3
    assert torch.equal(first.train.tensors[1], second.train.tensors[1])
    files[0].write_bytes(files[0].read_bytes()[:50])
    with pytest.warns(UserWarning, match="is damaged"):
        third = load("burgers", train=2, valid=1, test=1, resolution=32)
    assert torch.equal(first.train.tensors[1], third.train.tensors[1])


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_reads_the_published_file(tmp_path: Path, version: str) -> None:
    rng = np.random.default_rng(0)
    a, u = rng.standard_normal((2, 1011, FINEST)).astype(np.float32)
    path = tmp_path / "burgers_data_R10.mat"
    if version == "5":
        savemat(path, {"a": a, "u": u})
    else:
        with h5py.File(path, "w", userblock_size=512) as file:
            file["a"], file["u"] = a.T, u.T
        with path.open("r+b") as raw:
            raw.write(b"MATLAB 7.3 MAT-file, Platform: test")
    for data in (path, tmp_path):
        task = load("burgers", data=data, resolution=1024, train=4, valid=3, test=8)
        assert torch.equal(task.train.tensors[0][:, 0], torch.from_numpy(a[:4, ::8]))
        assert torch.equal(task.valid.tensors[1][:, 0], torch.from_numpy(u[1000:1003, ::8]))
        assert torch.equal(task.test.tensors[1][:, 0], torch.from_numpy(u[-8:, ::8]))
        assert torch.equal(load(task.name, **task.options).test.tensors[0], task.test.tensors[0])


def test_refuses_a_file_with_values_that_are_no_numbers(tmp_path: Path) -> None:
    a = np.ones((1003, FINEST), dtype=np.float32)
    u = a.copy()
    u[1000, 0] = np.nan
    savemat(tmp_path / "burgers_data_R10.mat", {"a": a, "u": u})
    with pytest.raises(ValueError, match="values of the valid set are not finite"):
        load("burgers", data=tmp_path, train=2, valid=1, test=1)
    savemat(tmp_path / "burgers_data_R10.mat", {"a": a, "u": 0 * a})
    with pytest.raises(ValueError, match="solutions of the train set are 0 in float32"):
        load("burgers", data=tmp_path, train=2, valid=1, test=1)
