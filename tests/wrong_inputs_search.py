"""What training and search refuse, and what they say."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from smalltask import net, small_task
from torch import nn

from xdnas.report import SwapError
from xdnas.search import search, train
from xdnas.search.runfolder import read_json
from xdnas.tasks.optimizers import ArchSettings
from xdnas.tasks.task import Recipe
from xdnas.tasks.train import fit


def _searching(**changes: Any) -> Callable[[], object]:
    def give() -> object:
        with tempfile.TemporaryDirectory() as folder:
            options = {"task": small_task(), "backbone": net(), "trials": 1, "epochs": 1, "out": Path(folder, "run")}
            return search(**{**options, **changes})

    return give


def _training(**changes: Any) -> Callable[[], object]:
    def give() -> object:
        with tempfile.TemporaryDirectory() as folder:
            options = {"task": small_task(), "backbone": net(), "epochs": 1, "out": Path(folder, "run")}
            return train(**{**options, "progress": False, **changes})

    return give


def _with_file(content: object, use: Callable[[Path], object], suffix: str = "pt") -> Callable[[], object]:
    def give() -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"file.{suffix}")
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                torch.save(content, path)
            return use(path)

    return give


def _start(path: Path) -> object:
    return _training(start=path)()


def _fit(**changes: Any) -> Callable[[], object]:
    task = small_task()
    return lambda: list(fit(net(), task, **{"recipe": task.recipe("Net"), "epochs": 1, **changes}))


def _resume(path: Path) -> object:
    return _fit(checkpoint=path, resume=True)()


def _resume_other_run() -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.pt")
        _fit(checkpoint=path)()
        return _fit(checkpoint=path, resume=True, seed=1)()


def _resume_truncated() -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.pt")
        _fit(checkpoint=path)()
        path.write_bytes(path.read_bytes()[:-200])
        return _resume(path)


def _resume_other_search() -> object:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        _training(out=out)()
        return _training(out=out, resume=True, epochs=2)()


ROWS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("search trials", _searching(trials=0), ValueError, r"search: trials 0 must be at least 1"),
    ("search epochs", _searching(epochs=0), ValueError, r"epochs 0 must be at least 1"),
    ("search concurrent", _searching(concurrent=0), ValueError, r"search: concurrent 0 must be at least 1"),
    ("search seed", _searching(seed=-1), ValueError, r"seed -1 must be 0 or more"),
    ("search task name", _searching(task="burger"), ValueError, r"burger.*burgers"),
    ("search backbone name", _searching(backbone="lennet"), ValueError, r"lennet.*lenet"),
    ("search no backbone", _searching(backbone=None), ValueError, r"task 'small' has no backbone of its own"),
    ("search no convolution", _searching(backbone=nn.Sequential(nn.Linear(16, 16))), SwapError, r"onvolution"),
    ("search out", _searching(out=Path.cwd()), FileExistsError, r"run folder .* exists already.*resume=True"),
    ("search resume", _searching(resume=True, out="/no/such"), FileNotFoundError, r"nothing to resume in '/no/such'"),
    ("search resume what", _searching(resume=True, out=None), ValueError, r"resume=True needs out="),
    ("search data", _searching(data="/tmp"), ValueError, r"data= and task_options= belong to a task given by name"),
    ("search device", _searching(device="tpu"), ValueError, r"device 'tpu' must be 'cpu' or 'cuda'"),
    ("search local address", _searching(address="127.0.0.1:6379"), ValueError, r"'127.0.0.1:6379' hangs in Ray"),
    ("search address", _searching(address="cluster"), ValueError, r"'cluster' must be host:port"),
    ("start missing", _training(start="/no/such.pt"), FileNotFoundError, r"no checkpoint file '/no/such.pt'"),
    ("start truncated", _with_file(b"PK\x03\x04", _start), ValueError, r"truncated or no torch checkpoint"),
    ("start empty", _with_file(b"", _start), ValueError, r"truncated or no torch checkpoint"),
    ("start safetensors", _with_file(b"1", _start, "safetensors"), ValueError, r"truncated or no safetensors file"),
    (
        "start objects",
        _with_file({"x": Path("a class of another library")}, _start),
        ValueError,
        r"truncated or no torch checkpoint",
    ),
    ("start list", _with_file([1], _start), ValueError, r"holds a list, not a dictionary"),
    ("start numbers", _with_file({"epoch": 3}, _start), ValueError, r"no state_dict; not tensors: \['epoch'\]"),
    (
        "start misfit",
        _with_file({"0.weight": torch.zeros(2), "1.weight": torch.zeros(2)}, _start),
        ValueError,
        r"missing: 0.bias, 3.bias, 3.weight; unexpected: 1.weight; other shapes: 0.weight \(2,\) for \(4, 1, 3\)",
    ),
    ("fit epochs", _fit(epochs=0), ValueError, r"fit: epochs 0 must be at least 1"),
    ("fit seed", _fit(seed=-1), ValueError, r"fit: seed -1 must be 0 or more"),
    ("fit optimizer", _fit(recipe=Recipe("lion", 1e-3)), ValueError, r"unknown optimizer 'lion'; known: sgd, adam"),
    ("fit resume", _fit(resume=True), ValueError, r"resume=True needs checkpoint="),
    ("fit nothing", _fit(resume=True, checkpoint=Path("/no/c.pt")), FileNotFoundError, r"no checkpoint file"),
    ("fit foreign", _with_file({"x": torch.zeros(1)}, _resume), ValueError, r"is not one of a training run"),
    (
        "fit other run",
        _resume_other_run,
        ValueError,
        r"of another run: it has \{'seed': 0\}, this run has \{'seed': 1\}",
    ),
    ("fit truncated", _resume_truncated, ValueError, r"truncated or no torch checkpoint"),
    ("resume other", _resume_other_search, ValueError, r"holds another run.*epochs: 1 then, 2 now"),
    ("arch optimizer", lambda: ArchSettings("rmsprop"), ValueError, r"ArchSettings: unknown optimizer 'rmsprop'"),
    ("arch lr", lambda: ArchSettings("sgd", float("nan")), ValueError, r"lr nan must be a finite number"),
    ("arch momentum", lambda: ArchSettings("sgd", 1.0, 1.0), ValueError, r"momentum 1.0 must be .* below 1"),
    ("arch warmup", lambda: ArchSettings("sgd", 1.0, 0.0, -1), ValueError, r"warmup -1 must be 0 or more epochs"),
    ("json", _with_file(b"{", read_json), ValueError, r"is no JSON"),
    ("json list", _with_file(b"[]", read_json), ValueError, r"holds a list, not an object"),
]
