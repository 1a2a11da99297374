"""Burgers' equation: u_t + (u^2 / 2)_x = nu u_xx, periodic; learn the map from u(., 0) to u(., time).

Initial conditions are a Gaussian random field N(0, sigma^2 (-d_xx + tau^2)^-gamma) on the unit circle (Li et al. 2021,
appendix A.3.1: sigma 25, tau 5, gamma 2), stretched to the length of the domain.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from xdnas.tasks.data import cached, progress, read_mat
from xdnas.tasks.metrics import RELATIVE_L2, mean_relative_l2, relative_l2
from xdnas.tasks.task import Recipe, Task

FINEST = 8192
FILE = "burgers_data_R10.mat"
REMEDY = f"{FILE} is published with the Fourier neural operator (github.com/neuraloperator/neuraloperator, 'Datasets')"
# Roberts et al. 2021, appendix: Adam, halved every fifth of the epochs, for the architecture as well
RECIPE = Recipe(
    "adam",
    1e-3,
    weight_decay=1e-4,
    batch_size=20,
    milestones=((0.2, 0.5), (0.4, 0.25), (0.6, 0.125), (0.8, 0.0625)),
    arch_lr=1e-3,
    swap_options={"arch_bias": False, "gates": False},
    exclude=("pointwise.*",),
)
_CHUNK = 256


def random_fields(
    indices: "range | list[int]",
    seed: "int | tuple[int, ...]",
    *,
    sigma: float = 25.0,
    tau: float = 5.0,
    gamma: float = 2.0,
) -> Tensor:
    """Spectra (N, FINEST/2 + 1), complex128, of fields on FINEST points; each index has a random stream of its own.

    Coefficient n of cosine and of sine is normal with standard deviation sqrt(2) sigma ((2 pi n)^2 + tau^2)^(-gamma/2);
    the mean is 0.
    """
    modes = FINEST // 2
    wave = 2 * math.pi * np.arange(1, modes + 1)
    deviation = math.sqrt(2) * abs(sigma) * (wave**2 + tau**2) ** (-gamma / 2)
    base = (seed,) if isinstance(seed, int) else seed
    spectra = np.zeros((len(indices), modes + 1), dtype=np.complex128)
    for row, index in enumerate(indices):
        cosine, sine = np.random.default_rng([*base, index]).standard_normal((2, modes))
        spectra[row, 1:] = deviation * (cosine - 1j * sine) * (FINEST / 2)
    # the highest mode has no sine on the grid, and its cosine counts once
    spectra[:, -1] = 2 * spectra[:, -1].real
    return torch.from_numpy(spectra)


def solver_size(viscosity: float, length: float, speed: float) -> int:
    """Grid points that resolve the steepest front, tanh(speed x / (4 nu)), down to 1e-9 in its spectrum."""
    needed = 10 * speed * length / (2 * math.pi * viscosity)
    size = max(1024, 1 << math.ceil(math.log2(needed)))
    if size > 32768:
        raise ValueError(
            f"burgers: viscosity {viscosity:g} on a length of {length:g} makes fronts that need {size} grid points; "
            "the solver goes up to 32768. Use a larger viscosity or a shorter domain"
        )
    return size


def solve(
    spectrum: Tensor,
    *,
    viscosity: float,
    length: float,
    time: float,
    speed: float,
    size: int | None = None,
    steps: int | None = None,
) -> Tensor:
    """The solution at `time` as a spectrum of the same shape (N, n/2 + 1), scaled as torch.fft.rfft of n points.

    Fourier pseudo-spectral in float64: the heat part is exact (integrating factor), the nonlinear part fourth-order
    Runge-Kutta with the 2/3 rule. At the default settings the result is within 1e-7 (relative L2) of the solution at
    half the step and at twice the resolution.

    Args:
        spectrum: initial conditions; modes beyond `size` / 3 are dropped.
        speed: bound on |u|; gives the step, at most 2.5 / (speed k_max).
        size, steps: grid points and time steps; default from `solver_size` and `speed`.

    Raises:
        ValueError: the solution is not finite or not resolved.
    """
    size = solver_size(viscosity, length, speed) if size is None else size
    kept = size // 3
    wave = 2 * math.pi / length * torch.arange(size // 2 + 1, dtype=torch.float64)
    mask = (torch.arange(size // 2 + 1) <= kept).to(torch.float64)
    steps = max(1, math.ceil(time * speed * float(wave[kept]) / 2.5)) if steps is None else steps
    n = 2 * (spectrum.shape[1] - 1)
    start = torch.zeros(len(spectrum), size // 2 + 1, dtype=spectrum.dtype)
    start[:, : kept + 1] = spectrum[:, : kept + 1] * (size / n)
    parts = [_advance(part, wave, mask, viscosity, time / steps, steps) for part in start.split(_CHUNK)]
    end = torch.cat(parts) if parts else start
    _check_resolved(end, kept, viscosity)
    result = torch.zeros_like(spectrum)
    result[:, : kept + 1] = end[:, : kept + 1] * (n / size)
    return result


def _advance(v: Tensor, wave: Tensor, mask: Tensor, viscosity: float, dt: float, steps: int) -> Tensor:
    half = torch.exp(-viscosity * wave**2 * dt / 2)
    whole, factor = half**2, -0.5j * wave * mask

    def slope(v: Tensor) -> Tensor:
        u = torch.fft.irfft(v)
        result: Tensor = factor * torch.fft.rfft(u * u)
        return result

    for _ in progress(steps, "solving Burgers' equation"):
        a = slope(v)
        b = slope(half * (v + dt / 2 * a))
        c = slope(half * v + dt / 2 * b)
        d = slope(whole * v + dt * half * c)
        v = whole * v + dt / 6 * (whole * a + 2 * half * (b + c) + d)
    return v


def _check_resolved(v: Tensor, kept: int, viscosity: float) -> None:
    tail = v[:, 3 * kept // 4 : kept + 1].norm() / v.norm()
    if not bool(torch.isfinite(v.real).all()) or not float(tail) < 1e-6:
        raise ValueError(
            f"burgers: at viscosity {viscosity:g} the solution is not resolved (spectral tail {float(tail):.1e})"
        )


def generate(count: int, seed: "int | tuple[int, ...]", resolution: int, **settings: Any) -> tuple[Tensor, Tensor]:
    """`count` pairs a = u(., 0) and u = u(., time), each (count, resolution) float32; see `load` for the settings."""
    field = {k: settings[k] for k in ("sigma", "tau", "gamma")}
    wave = 2 * math.pi * np.arange(1, FINEST // 2 + 1)
    deviation = float(
        np.sqrt(2 * settings["sigma"] ** 2 * ((wave**2 + settings["tau"] ** 2) ** -settings["gamma"]).sum())
    )
    pde = {k: settings[k] for k in ("viscosity", "length", "time")}
    spectrum = random_fields(range(count), seed, **field)
    end = solve(spectrum, speed=max(6 * deviation, 1e-3), **pde)
    step = FINEST // resolution
    return torch.fft.irfft(spectrum)[:, ::step].float(), torch.fft.irfft(end)[:, ::step].float()


def load(
    *,
    data: "str | os.PathLike[str] | None" = None,
    seed: int = 0,
    resolution: int = 256,
    train: int = 256,
    valid: int = 100,
    test: int = 100,
    viscosity: float = 0.1,
    length: float = 2 * math.pi,
    time: float = 1.0,
    sigma: float = 25.0,
    tau: float = 5.0,
    gamma: float = 2.0,
) -> Task:
    """The task. Inputs (N, 2, resolution): u(., 0) and the coordinate from 0 to 2 pi; targets (N, 1, resolution).

    On a length of 2 pi the solution keeps about 0.82 of its norm; on a length of 1 it keeps 0.016, and the task is
    trivial. Generated data are solved on this machine once and cached; sample i depends on the seed and i only.

    Args:
        data: the published file burgers_data_R10.mat or a folder with it; then the PDE's settings are the file's, the
            training set its first rows, the test set its last, the validation set the rows behind the first 1000.
        seed: of generated data.
        resolution: grid points, a power of two from 32 to 8192 (every 8192/resolution-th point is taken).
        train, valid, test: numbers of samples; the paper has 1000 and 100.
        viscosity, length, time: nu, the length of the domain, and the time of the target.
        sigma, tau, gamma: of the random field.

    Raises:
        ValueError: for settings out of range, or a file without the fields `a` and `u` (rows, 8192).
        FileNotFoundError: the file is not there.
    """
    if resolution not in [2**i for i in range(5, 14)]:
        raise ValueError(f"burgers: resolution {resolution} must be a power of two from 32 to {FINEST}")
    counts = {"train": train, "valid": valid, "test": test}
    for name, number in {**counts, "viscosity": viscosity, "length": length, "time": time, "sigma": sigma}.items():
        if not number > 0:
            raise ValueError(f"burgers: {name} {number} must be above 0")
    settings = {"viscosity": viscosity, "length": length, "time": time, "sigma": sigma, "tau": tau, "gamma": gamma}
    options: dict[str, Any] = {"seed": seed, "resolution": resolution, **counts, **settings}
    if data is None:
        pairs = _generated(counts, seed, resolution, settings)
    else:
        options["data"] = os.fspath(data)
        pairs = _published(Path(data), counts, resolution)
    sets = {name: _dataset(*pair) for name, pair in pairs.items()}
    return Task(
        "burgers",
        sets["train"],
        sets["valid"],
        sets["test"],
        loss=mean_relative_l2,
        metric=RELATIVE_L2,
        options=options,
        baselines=_baselines(sets["train"], sets["test"]),
        backbone="pde",
        rivals={"fno": "fno"},
        recipes={"pde": RECIPE, "fno": RECIPE},
    )


Pairs = dict[str, tuple[Tensor, Tensor]]


def _generated(counts: Mapping[str, int], seed: int, resolution: int, settings: Mapping[str, float]) -> Pairs:
    pairs = {}
    for split, (name, count) in enumerate(counts.items()):
        key = {"version": 1, "split": name, "count": count, "seed": seed, "resolution": resolution, **settings}

        def make(split: int = split, count: int = count) -> dict[str, Tensor]:
            a, u = generate(count, (seed, split), resolution, **settings)
            return {"a": a, "u": u}

        values = cached("burgers", key, make)
        pairs[name] = (values["a"], values["u"])
    return pairs


def _published(path: Path, counts: Mapping[str, int], resolution: int) -> Pairs:
    path = path / FILE if path.is_dir() else path
    fields = read_mat(path, ("a", "u"), REMEDY)
    a, u = (torch.from_numpy(fields[name].astype(np.float32)) for name in ("a", "u"))
    if a.shape != u.shape or a.dim() != 2 or a.shape[1] != FINEST:
        raise ValueError(f"{path}: fields a {tuple(a.shape)} and u {tuple(u.shape)} must be (rows, {FINEST}). {REMEDY}")
    first = max(1000, counts["train"])
    if first + counts["valid"] + counts["test"] > len(a):
        raise ValueError(f"burgers: {dict(counts)} samples are more than the {len(a)} rows of {path} give")
    step = FINEST // resolution
    a, u = a[:, ::step], u[:, ::step]
    rows = {
        "train": slice(counts["train"]),
        "valid": slice(first, first + counts["valid"]),
        "test": slice(len(a) - counts["test"], None),
    }
    return {name: (a[own].clone(), u[own].clone()) for name, own in rows.items()}


def _dataset(a: Tensor, u: Tensor) -> TensorDataset:
    grid = torch.linspace(0, 2 * math.pi, a.shape[1]).expand_as(a)
    return TensorDataset(torch.stack((a, grid), 1), u[:, None])


def _baselines(train: TensorDataset, test: TensorDataset) -> dict[str, float]:
    (x, y), (test_x, test_y) = train.tensors, test.tensors
    before, after = torch.fft.rfft(x[:, :1].double()), torch.fft.rfft(y.double())
    power = before.abs().square().sum(0)
    gain = (before.conj() * after).sum(0) / power.clamp_min(1e-30)
    filtered = torch.fft.irfft(gain * torch.fft.rfft(test_x[:, :1].double()), n=y.shape[-1])
    guesses = {
        "input": test_x[:, :1],
        "mean": y.mean(0, keepdim=True).expand_as(test_y),
        "linear Fourier filter": filtered.float(),
    }
    return {name: float(relative_l2(guess, test_y).mean()) for name, guess in guesses.items()}
