"""Burgers' equation as a task: learn the map from u(., 0) to u(., final_time), generated here or read from a file."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from xdnas.tasks.burgers_solver import FINEST, Problem, random_fields, solve
from xdnas.tasks.data import cached, check_counts, check_seed
from xdnas.tasks.matfile import read_mat
from xdnas.tasks.metrics import RELATIVE_L2, mean_relative_l2, relative_l2
from xdnas.tasks.task import Recipe, Task

FILE = "burgers_data_R10.mat"
REMEDY = f"{FILE} is published with the Fourier neural operator (github.com/neuraloperator/neuraloperator, 'Datasets')"
RESOLUTIONS = [2**i for i in range(5, 14)]
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
Pairs = dict[str, tuple[Tensor, Tensor]]


def load(
    *,
    data: str | os.PathLike[str] | None = None,
    seed: int = 0,
    resolution: int = 256,
    train: int = 256,
    valid: int = 100,
    test: int = 100,
    viscosity: float = 0.1,
    length: float = 2 * math.pi,
    final_time: float = 1.0,
    sigma: float = 25.0,
    tau: float = 5.0,
    gamma: float = 2.0,
) -> Task:
    """The task. Inputs (N, 2, resolution): u(., 0) and the coordinate from 0 to 2 pi; targets (N, 1, resolution).

    On a length of 2 pi the solution keeps about 0.82 of its norm; on a length of 1 it keeps 0.016, and the task is
    trivial. Generated data are solved on this machine once and cached; sample i depends on the seed and i only.

    Args:
        data: the published file burgers_data_R10.mat or a folder with it. The training set is its first rows, the test
            set its last, the validation set the rows behind the first 1000; the equation is the file's.
        seed: of generated data.
        resolution: grid points, a power of two from 32 to 8192 (every 8192/resolution-th point is taken).
        train, valid, test: numbers of samples; the paper has 1000 and 100.
        viscosity, length, final_time, sigma, tau, gamma: of generated data, see `Problem`.

    Raises:
        ValueError: for settings out of range, settings of generated data beside a file, or a file without the fields
            `a` and `u` (rows, 8192).
        FileNotFoundError: the file is not there.
    """
    if resolution not in RESOLUTIONS or not isinstance(resolution, int):
        raise ValueError(f"burgers: resolution {resolution!r} must be a power of two from 32 to {FINEST}")
    counts = {"train": train, "valid": valid, "test": test}
    check_counts("burgers", counts)
    check_seed("burgers", seed)
    problem = Problem(viscosity, length, final_time, sigma, tau, gamma)
    options: dict[str, Any] = {"seed": seed, "resolution": resolution, **counts}
    if data is None:
        options.update(asdict(problem))
        pairs = _generated(counts, seed, resolution, problem)
    else:
        # workers of a search may run in another folder
        options["data"] = str(Path(data).absolute())
        _refuse_settings(problem, data)
        pairs = _published(Path(data), counts, resolution)
    return _task(pairs, options)


def _task(pairs: Pairs, options: Mapping[str, Any]) -> Task:
    sets = {name: _dataset(*pair, name) for name, pair in pairs.items()}
    return Task(
        sets["train"],
        sets["valid"],
        sets["test"],
        mean_relative_l2,
        RELATIVE_L2,
        "burgers",
        options=options,
        baselines=_baselines(sets["train"], sets["test"]),
        backbone="pde",
        rivals={"fno": "fno"},
        recipes={"pde": RECIPE, "fno": RECIPE},
    )


def generate(
    count: int, seed: int | tuple[int, ...], resolution: int, problem: Problem, what: str = "samples"
) -> tuple[Tensor, Tensor]:
    """`count` pairs u(., 0) and u(., final_time), each (count, resolution) float32."""
    start = random_fields(range(count), seed, problem)
    end = solve(start, problem, what=what)
    step = FINEST // resolution
    a, u = (torch.fft.irfft(spectrum)[:, ::step].float() for spectrum in (start, end))
    return a, u


def _generated(counts: Mapping[str, int], seed: int, resolution: int, problem: Problem) -> Pairs:
    pairs = {}
    for split, (name, count) in enumerate(counts.items()):
        key = {"version": 1, "split": name, "count": count, "seed": seed, "resolution": resolution, **asdict(problem)}

        def make(split: int = split, name: str = name, count: int = count) -> dict[str, Tensor]:
            a, u = generate(count, (seed, split), resolution, problem, name)
            return {"a": a, "u": u}

        values = cached("burgers", key, make)
        pairs[name] = (values["a"], values["u"])
    return pairs


def _refuse_settings(problem: Problem, data: str | os.PathLike[str]) -> None:
    usual = asdict(Problem())
    given = {name: value for name, value in asdict(problem).items() if value != usual[name]}
    if given:
        text = ", ".join(f"{name}={value:g}" for name, value in given.items())
        raise ValueError(f"burgers: {text} is for generated data; the solutions in {os.fspath(data)} have their own")


def _published(path: Path, counts: Mapping[str, int], resolution: int) -> Pairs:
    path = path / FILE if path.is_dir() else path
    fields = read_mat(path, ("a", "u"), REMEDY)
    a, u = fields["a"], fields["u"]
    if a.shape != u.shape or a.ndim != 2 or a.shape[1] != FINEST:
        raise ValueError(f"{path}: fields a {a.shape} and u {u.shape} must be (rows, {FINEST}). {REMEDY}")
    first = max(1000, counts["train"])
    if first + counts["valid"] + counts["test"] > len(a):
        raise ValueError(
            f"burgers: {path} has {len(a)} rows; train {counts['train']}, valid {counts['valid']} (behind row {first}) "
            f"and test {counts['test']} do not fit. Ask for fewer"
        )
    step = FINEST // resolution
    rows = {
        "train": slice(counts["train"]),
        "valid": slice(first, first + counts["valid"]),
        "test": slice(len(a) - counts["test"], None),
    }
    return {name: (_float32(a[own, ::step]), _float32(u[own, ::step])) for name, own in rows.items()}


def _float32(values: Any) -> Tensor:
    return torch.from_numpy(values.astype("float32", order="C"))


def _dataset(a: Tensor, u: Tensor, name: str) -> TensorDataset:
    if not bool(torch.isfinite(a).all() and torch.isfinite(u).all()):
        raise ValueError(f"burgers: values of the {name} set are not finite")
    if bool((u.norm(dim=1) == 0).any()):
        raise ValueError(
            f"burgers: solutions of the {name} set are 0 in float32, so a relative error means nothing. "
            "Use a smaller viscosity, an earlier final_time or a longer domain"
        )
    grid = torch.linspace(0, 2 * math.pi, a.shape[1]).expand_as(a)
    return TensorDataset(torch.stack((a, grid), 1), u[:, None])


def _baselines(train: TensorDataset, test: TensorDataset) -> dict[str, float]:
    """Test error of the input itself, of the mean target, and of the best factor per frequency (least squares)."""
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
