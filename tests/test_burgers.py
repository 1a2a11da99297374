import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch import Tensor

from xdnas.tasks import load
from xdnas.tasks.burgers import FINEST, random_fields, solve
from xdnas.tasks.metrics import relative_l2

DEFAULT: dict[str, Any] = {"viscosity": 0.1, "length": 2 * math.pi, "time": 1.0, "speed": 3.5}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def values(spectrum: Tensor) -> Tensor:
    result: Tensor = torch.fft.irfft(spectrum)
    return result


def worst(a: Tensor, b: Tensor) -> float:
    return float(relative_l2(values(a), values(b)).max())


def cole_hopf(u: Tensor, viscosity: float, length: float, time: float) -> Tensor:
    """The exact solution: u = -2 nu phi_x / phi, where phi obeys the heat equation."""
    n = u.shape[1]
    wave = 2 * math.pi / length * torch.arange(n // 2 + 1, dtype=torch.float64)
    spectrum = torch.fft.rfft(u)
    integral = torch.where(wave > 0, spectrum / (1j * wave).where(wave > 0, torch.ones(())), 0)
    phi = torch.fft.rfft(torch.exp(-torch.fft.irfft(integral) / (2 * viscosity))) * torch.exp(
        -viscosity * wave**2 * time
    )
    solution: Tensor = -2 * viscosity * torch.fft.irfft(1j * wave * phi) / torch.fft.irfft(phi)
    return solution


@pytest.mark.parametrize(("viscosity", "length", "time"), [(0.1, 2 * math.pi, 1.0), (0.1, 1.0, 0.1), (0.05, 4.0, 0.7)])
def test_the_solution_is_that_of_the_cole_hopf_transform(viscosity: float, length: float, time: float) -> None:
    start = random_fields(range(2), seed=3)
    end = solve(start, viscosity=viscosity, length=length, time=time, speed=3.5)
    exact = cole_hopf(values(start), viscosity, length, time)
    assert float(relative_l2(values(end), exact).max()) < 1e-7


def test_converged_in_step_and_resolution() -> None:
    start = random_fields(range(2), seed=1)
    end = solve(start, **DEFAULT)
    fine = solve(start, size=2048, **DEFAULT)
    finer_steps = solve(start, steps=2 * math.ceil(3.5 * (1024 // 3) / 2.5), **DEFAULT)
    assert worst(end, fine) < 1e-7
    assert worst(end, finer_steps) < 1e-7


def test_fourth_order_in_time() -> None:
    start = random_fields(range(1), seed=2)
    reference = solve(start, steps=800, **DEFAULT)
    errors = [worst(solve(start, steps=s, **DEFAULT), reference) for s in (150, 300)]
    assert 3.5 < math.log2(errors[0] / errors[1]) < 4.5


def test_the_random_field_has_the_stated_spectrum() -> None:
    fields = values(random_fields(range(400), seed=0))
    wave = 2 * math.pi * torch.arange(1, FINEST // 2 + 1)
    variance = 2 * 25**2 * ((wave**2 + 25) ** -2).sum()
    assert fields.mean(1).abs().max() < 1e-12
    assert abs(float(fields.square().mean()) / float(variance) - 1) < 0.1


def test_the_solution_keeps_most_of_its_norm_on_2_pi_and_little_on_1() -> None:
    start = random_fields(range(50), seed=0)

    def kept(length: float) -> float:
        end = cole_hopf(values(start), 0.1, length, 1.0)
        return float((end.norm(dim=1) / values(start).norm(dim=1)).mean())

    assert 0.75 < kept(2 * math.pi) < 0.88
    assert kept(1.0) < 0.03


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


def test_a_damaged_cache_is_told_and_made_again(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = load("burgers", train=2, valid=1, test=1, resolution=32)
    capsys.readouterr()
    files = sorted(own_cache.iterdir())
    assert len(files) == 3
    for file in files:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    second = load("burgers", train=2, valid=1, test=1, resolution=32)
    assert capsys.readouterr().out.count("is damaged (") == 3
    assert torch.equal(first.train.tensors[1], second.train.tensors[1])
    files[0].write_bytes(files[0].read_bytes()[:50])
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
