"""Burgers' equation with random initial conditions: the fields, and an own pseudo-spectral solver."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xdnas.tasks.data import progress

FINEST = 8192
LARGEST, MOST_STEPS = 32_768, 100_000
_CHUNK = 256


@dataclass(frozen=True)
class Problem:
    """u_t + (u^2 / 2)_x = nu u_xx, periodic, and the random field N(0, sigma^2 (-d_xx + tau^2)^-gamma) it starts from.

    The field lives on the unit circle (Li et al. 2021, appendix A.3.1) and is stretched to the length of the domain.

    Attributes:
        viscosity, length, final_time: nu, the length of the domain, and the time of the solution that is wanted.
        sigma, tau, gamma: of the random field.

    Raises:
        ValueError: a value out of range.
    """

    viscosity: float = 0.1
    length: float = 2 * math.pi
    final_time: float = 1.0
    sigma: float = 25.0
    tau: float = 5.0
    gamma: float = 2.0

    def __post_init__(self) -> None:
        for name, low in (("viscosity", 0), ("length", 0), ("final_time", 0), ("sigma", 0), ("gamma", 0.5)):
            self._check(name, low)
        self._check("tau", 0, closed=True)

    def _check(self, name: str, low: float, closed: bool = False) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and math.isfinite(value)
        if not number or value < low or (value == low and not closed):
            raise ValueError(f"burgers: {name} {value!r} must be a number {'from' if closed else 'above'} {low}")

    def deviations(self) -> np.ndarray:
        """Standard deviations of the coefficients of cos and sin at frequencies 1 to FINEST / 2."""
        wave = 2 * math.pi * np.arange(1, FINEST // 2 + 1)
        result: np.ndarray = math.sqrt(2) * self.sigma * (wave**2 + self.tau**2) ** (-self.gamma / 2)
        return result

    @property
    def speed(self) -> float:
        """A bound on |u| that all but one field in a million respect: 6 standard deviations; |u| never grows."""
        return max(6 * float(np.sqrt((self.deviations() ** 2).sum())), 1e-3)


def random_fields(indices: Sequence[int], seed: int | tuple[int, ...], problem: Problem) -> Tensor:
    """Spectra (N, FINEST/2 + 1), complex128, of fields on FINEST points; each index has a random stream of its own.

    The mean of a field is 0.
    """
    modes, deviations = FINEST // 2, problem.deviations()
    base = (seed,) if isinstance(seed, int) else seed
    spectra = np.zeros((len(indices), modes + 1), dtype=np.complex128)
    for row, index in enumerate(indices):
        cosine, sine = np.random.default_rng([*base, index]).standard_normal((2, modes))
        spectra[row, 1:] = deviations * (cosine - 1j * sine) * (FINEST / 2)
    # the highest mode has no sine on the grid, and its cosine counts once
    spectra[:, -1] = 2 * spectra[:, -1].real
    return torch.from_numpy(spectra)


def grid_points(problem: Problem) -> int:
    """Grid points that resolve the steepest front, tanh(speed x / (4 nu)), down to 1e-9 in its spectrum.

    Raises:
        ValueError: more are needed than the solver takes.
    """
    needed = 10 * problem.speed * problem.length / (2 * math.pi * problem.viscosity)
    size = max(1024, 1 << max(0, math.ceil(math.log2(needed))))
    if size > LARGEST:
        raise ValueError(
            f"burgers: viscosity {problem.viscosity:g} on a length of {problem.length:g} makes fronts that need {size} "
            f"grid points; the solver goes up to {LARGEST}. Use a larger viscosity or a shorter domain"
        )
    return size


def time_steps(problem: Problem, size: int) -> int:
    """Steps of at most 2.5 / (speed k_max); the method is stable up to 2.83.

    Raises:
        ValueError: more are needed than the solver takes.
    """
    highest = 2 * math.pi / problem.length * (size // 3)
    steps = max(1, math.ceil(problem.final_time * problem.speed * highest / 2.5))
    if steps > MOST_STEPS:
        raise ValueError(
            f"burgers: final_time {problem.final_time:g} on a length of {problem.length:g} needs {steps} steps; "
            f"the solver goes up to {MOST_STEPS}. Use an earlier final_time or a longer domain"
        )
    return steps


def solve(
    spectrum: Tensor, problem: Problem, *, size: int | None = None, steps: int | None = None, what: str = "samples"
) -> Tensor:
    """The solution at `final_time` as a spectrum of the same shape (N, n/2 + 1), scaled as torch.fft.rfft of n points.

    Fourier pseudo-spectral in float64: the heat part is exact (integrating factor), the nonlinear part fourth-order
    Runge-Kutta with the 2/3 rule. By default the result is within 1e-7 (relative L2) of the exact solution.

    Args:
        spectrum: initial conditions; modes beyond `size` / 3 are dropped.
        problem: the equation; its `speed` bounds |u|.
        size, steps: grid points and time steps; default from `grid_points` and `time_steps`.
        what: of the samples, for the progress bar.

    Raises:
        ValueError: the solution is not finite or not resolved by the grid.
    """
    size = grid_points(problem) if size is None else size
    steps = time_steps(problem, size) if steps is None else steps
    n, kept = 2 * (spectrum.shape[1] - 1), size // 3
    start = torch.zeros(len(spectrum), size // 2 + 1, dtype=spectrum.dtype)
    start[:, : kept + 1] = spectrum[:, : kept + 1] * (size / n)
    end = torch.cat([_advance(part, kept, problem, steps, what) for part in start.split(_CHUNK)])
    _check_resolved(end, kept, problem)
    result = torch.zeros_like(spectrum)
    result[:, : kept + 1] = end[:, : kept + 1] * (n / size)
    return result


def _advance(v: Tensor, kept: int, problem: Problem, steps: int, what: str) -> Tensor:
    index, dt = torch.arange(v.shape[1], dtype=torch.float64), problem.final_time / steps
    wave = 2 * math.pi / problem.length * index
    half = torch.exp(-problem.viscosity * wave**2 * dt / 2)
    whole, factor = half**2, -0.5j * wave * (index <= kept)

    def slope(v: Tensor) -> Tensor:
        u = torch.fft.irfft(v)
        result: Tensor = factor * torch.fft.rfft(u * u)
        return result

    for _ in progress(steps, f"solving Burgers' equation, {what}"):
        a = slope(v)
        b = slope(half * (v + dt / 2 * a))
        c = slope(half * v + dt / 2 * b)
        d = slope(whole * v + dt * half * c)
        v = whole * v + dt / 6 * (whole * a + 2 * half * (b + c) + d)
    return v


def _check_resolved(v: Tensor, kept: int, problem: Problem) -> None:
    """Every sample's top quarter of frequencies must be empty; not-a-number fails the comparison as well."""
    tail = v[:, 3 * kept // 4 : kept + 1].abs().norm(dim=1) / v.abs().norm(dim=1).clamp_min(1e-300)
    bad = ~(tail < 1e-6)
    if bool(bad.any()):
        raise ValueError(
            f"burgers: the grid does not resolve {int(bad.sum())} of {len(v)} solutions at viscosity "
            f"{problem.viscosity:g} and final_time {problem.final_time:g} (spectral tail {float(tail.max()):.1e}, "
            "allowed 1e-6). Use a larger viscosity, a smoother field (larger gamma) or a later final_time"
        )
