"""What tasks and backbones refuse, and what they say."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import savemat
from smalltask import net, small_task
from torch.utils.data import TensorDataset

from xdnas.backbones import build
from xdnas.tasks import load
from xdnas.tasks.images import FOLDER
from xdnas.tasks.metrics import relative_l2
from xdnas.tasks.task import Recipe
from xdnas.tasks.train import fit


def _load(name: str, **options: Any) -> Callable[[], object]:
    return lambda: load(name, **options)


def _burgers_file(write: Callable[[Path], object]) -> Callable[[], object]:
    def give() -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "burgers_data_R10.mat"
            write(path)
            return load("burgers", data=path)

    return give


def _burgers_folder() -> object:
    with tempfile.TemporaryDirectory() as folder:
        return load("burgers", data=folder)


def _truncated(path: Path) -> None:
    savemat(path, {"a": np.zeros((20, 8192)), "u": np.zeros((20, 8192))})
    path.write_bytes(path.read_bytes()[:100_000])


def _mat73(path: Path) -> None:
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n" + bytes(100))


def _cifar(size: int, label: int = 0) -> Callable[[], object]:
    def give() -> object:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / FOLDER).mkdir()
            raw = np.full(size, label, dtype=np.uint8)
            raw.tofile(Path(folder) / FOLDER / "data_batch_1.bin")
            return load("cifar10", data=folder)

    return give


def _own(**changes: Any) -> Callable[[], object]:
    return lambda: small_task(**changes)


def _set(*tensors: torch.Tensor) -> TensorDataset:
    return TensorDataset(*tensors)


ROWS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    (
        "task name",
        _load("burger"),
        ValueError,
        r"unknown task 'burger' \(did you mean 'burgers'\?\); known: burgers, cifar",
    ),
    ("task option", _load("burgers", resolutoin=3), ValueError, r"no option 'resolutoin' \(did you mean 'resolution'"),
    ("permuted option", _load("cifar10", permuted=True), ValueError, r"no option 'permuted'"),
    ("resolution", _load("burgers", resolution=100), ValueError, r"resolution 100 must be a power of two from 32"),
    ("viscosity", _load("burgers", viscosity=0), ValueError, r"viscosity 0 must be a number above 0"),
    ("length", _load("burgers", length=-1.0), ValueError, r"length -1.0 must be a number above 0"),
    ("train", _load("burgers", train=0), ValueError, r"burgers: train 0 must be a whole number above 0"),
    ("too steep", _load("burgers", viscosity=1e-4), ValueError, r"viscosity 0.0001 .* solver goes up to 32768"),
    ("no number", _load("burgers", viscosity=float("nan")), ValueError, r"viscosity nan must be a number above 0"),
    ("endless", _load("burgers", final_time=float("inf")), ValueError, r"final_time inf must be a number above 0"),
    ("rough field", _load("burgers", gamma=0.5), ValueError, r"gamma 0.5 must be a number above 0.5"),
    ("tau", _load("burgers", tau=-1), ValueError, r"tau -1 must be a number from 0"),
    ("text number", _load("burgers", sigma="big"), ValueError, r"sigma 'big' must be a number above 0"),
    ("half sample", _load("burgers", test=2.5), ValueError, r"test 2.5 must be a whole number above 0"),
    ("float resolution", _load("burgers", resolution=256.0), ValueError, r"resolution 256.0 must be a power of two"),
    ("seed", _load("burgers", seed=-1), ValueError, r"seed -1 must be a whole number from 0"),
    ("image seed", _load("cifar10", seed=0.5), ValueError, r"CIFAR-10: seed 0.5 must be a whole number from 0"),
    ("late", _load("burgers", final_time=1000.0), ValueError, r"needs \d+ steps; the solver goes up to 100000"),
    (
        "too early",
        _load("burgers", final_time=1e-4, train=2),
        ValueError,
        r"does not resolve 2 of 2 solutions .* a later final_time",
    ),
    (
        "decayed",
        _load("burgers", viscosity=100.0, train=2),
        ValueError,
        r"solutions of the train set are 0 in float32.*Use a smaller viscosity",
    ),
    (
        "settings beside a file",
        _load("burgers", data="/nowhere/b.mat", viscosity=0.2, tau=7),
        ValueError,
        r"viscosity=0.2, tau=7 is for generated data; the solutions in /nowhere/b.mat have their own",
    ),
    ("no folder file", _burgers_folder, FileNotFoundError, r"burgers_data_R10.mat does not exist. .*published"),
    (
        "no file",
        _load("burgers", data="/nowhere/b.mat"),
        FileNotFoundError,
        r"/nowhere/b.mat does not exist. .*published",
    ),
    ("truncated", _burgers_file(_truncated), ValueError, r"truncated or no MATLAB file.*published with"),
    ("truncated 7.3", _burgers_file(_mat73), ValueError, r"truncated or no MATLAB file.*published with"),
    ("text", _burgers_file(lambda p: p.write_text("hello")), ValueError, r"truncated or no MATLAB file"),
    ("empty", _burgers_file(lambda p: p.write_bytes(b"")), ValueError, r"truncated or no MATLAB file"),
    (
        "fields",
        _burgers_file(lambda p: savemat(p, {"a": np.zeros((2, 8192))})),
        ValueError,
        r"has no field u; expected a, u",
    ),
    (
        "field shape",
        _burgers_file(lambda p: savemat(p, {"a": np.zeros((2, 100)), "u": np.zeros((2, 100))})),
        ValueError,
        r"a \(2, 100\) and u \(2, 100\) must be \(rows, 8192\)",
    ),
    (
        "text field",
        _burgers_file(lambda p: savemat(p, {"a": "hello", "u": np.zeros((2, 2))})),
        ValueError,
        r"field a is no array of real numbers",
    ),
    (
        "few rows",
        _burgers_file(lambda p: savemat(p, {"a": np.zeros((9, 8192)), "u": np.zeros((9, 8192))})),
        ValueError,
        r"has 9 rows; train 256, valid 100 \(behind row 1000\) and test 100 do not fit",
    ),
    (
        "no cifar",
        _load("cifar10", data="/nowhere"),
        FileNotFoundError,
        r"'/nowhere' does not exist. Download https://www",
    ),
    ("short cifar", _cifar(1000), ValueError, r"has 1000 bytes, not 30730000: it is damaged. Download"),
    ("label", _cifar(30_730_000, 11), ValueError, r"has the label 11, allowed are 0 to 9"),
    ("other batches", _cifar(30_730_000), FileNotFoundError, r"data_batch_2.bin is missing. Download"),
    ("images", _load("cifar10", train=50_000, valid=1), ValueError, r"train 50000 \+ valid 1 must be at most 50000"),
    ("no images", _load("cifar10", train=0), ValueError, r"CIFAR-10: train 0 must be a whole number above 0"),
    (
        "backbone",
        lambda: build("resnet"),
        ValueError,
        r"unknown backbone 'resnet'; did you mean 'resnet20'.*known: lenet",
    ),
    ("backbone option", lambda: build("lenet", width=3), ValueError, r"'lenet' does not take these options"),
    ("dimensions", lambda: build("pde", dimensions=4), ValueError, r"dimensions 4 must be 1, 2 or 3"),
    ("even kernel", lambda: build("pde", kernel_size=4), ValueError, r"kernel_size 4 must be odd"),
    ("modes", lambda: build("fno", modes=0), ValueError, r"FNO: modes 0 must be at least 1"),
    (
        "nan inputs",
        _own(valid=_set(torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]]), torch.zeros(2))),
        ValueError,
        r"Task: valid: 1 of 2 inputs are not finite \(nan or inf\)",
    ),
    (
        "no samples",
        _own(test=_set(torch.zeros(0, 3), torch.zeros(0))),
        ValueError,
        r"test must be .*one sample or more",
    ),
    ("no targets", _own(train=_set(torch.zeros(4, 3))), ValueError, r"train must be inputs and targets .* \(4, 3\)$"),
    (
        "no dataset",
        _own(train=[torch.zeros(4, 3)] * 2),
        TypeError,
        r"train must be torch.utils.data.TensorDataset\(inputs, targets\), not list",
    ),
    ("no metric", _own(metric=relative_l2), TypeError, r"metric <function relative_l2.* must be an xdnas.tasks.Metric"),
    (
        "batch size",
        lambda: fit(net(), small_task(), Recipe("adam", 1e-3, batch_size=0), epochs=1),
        ValueError,
        r"Recipe: batch_size 0 must be a whole number above 0",
    ),
    ("fno dimensions", lambda: build("fno", dimensions=0), ValueError, r"FNO: dimensions 0"),
]
