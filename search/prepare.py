"""Everything that can be checked before a run starts, and its folder."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import xdnas.tasks
from xdnas.search.runfolder import new_folder, read_json, versions, write_json
from xdnas.search.trial import Setup, fingerprint, is_registered, make_model
from xdnas.tasks.savepoint import load_weights, read_weights, to_bytes, write_atomic
from xdnas.tasks.task import Task

Path_ = str | os.PathLike[str]


def prepare(
    task: str | Task,
    backbone: str | nn.Module | None,
    methods: tuple[str, ...],
    *,
    epochs: int,
    seed: int,
    out: Path_ | None,
    resume: bool,
    start: Path_ | None,
    data: Path_ | None,
    task_options: Mapping[str, Any] | None,
    device: str | None,
    record: Mapping[str, Any],
) -> tuple[Setup, Task]:
    """Check a run and make its folder, or check that a folder holds the same run.

    Args:
        methods: whose networks are built once to see that they can be; others are ignored.
        record: what else config.json should tell.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: say what is wrong; nothing has been written then.
    """
    if epochs < 1:
        raise ValueError(f"epochs {epochs} must be at least 1")
    if seed < 0:
        raise ValueError(f"seed {seed} must be 0 or more")
    if resume and out is None:
        raise ValueError("resume=True needs out=, the run folder to continue")
    if resume and not (Path(str(out)) / "config.json").is_file():
        raise FileNotFoundError(f"nothing to resume in {str(out)!r}: it holds no config.json")
    name = task if isinstance(task, str) else task.name
    folder = Path(str(out)).absolute() if resume else new_folder(out, name)
    loaded, reference = _task(task, data, task_options or {})
    network = loaded.backbone if backbone is None else backbone
    if isinstance(network, str) and not network:
        raise ValueError(f"task {name!r} has no backbone of its own; give one, e.g. backbone='resnet20' or a model")
    options = dict(loaded.options) if isinstance(reference, str) else {}
    setup = Setup(folder, reference, network, epochs, seed, _device(device), options)
    # a run keeps its start, so that it can go on when the original has been moved
    weights = _start(setup, loaded, None if start is None else folder / "start.pt" if resume else start)
    for method in methods:
        make_model(setup, loaded, method)
    config = _config(setup, loaded, start, record)
    if resume:
        _check_same(read_json(folder / "config.json"), config, folder)
    else:
        folder.mkdir(parents=True)
        if weights is not None:
            write_atomic(folder / "start.pt", weights)
        write_json(folder / "config.json", config)
    own = folder / "start.pt" if start is not None else None
    return Setup(folder, reference, network, epochs, seed, setup.device, options, own), loaded


def _task(task: str | Task, data: Path_ | None, options: Mapping[str, Any]) -> tuple[Task, str | Task]:
    """The task, and what stands for it in a worker: its name if that is enough."""
    if isinstance(task, str):
        where: dict[str, Any] = {} if data is None else {"data": os.fspath(data)}
        return xdnas.tasks.load(task, **{**where, **options}), task
    if data is not None or options:
        raise ValueError("data= and task_options= belong to a task given by name; a Task object has its data already")
    return task, task.name if is_registered(task) else task


def _start(setup: Setup, task: Task, start: Path_ | None) -> bytes | None:
    if start is None:
        return None
    weights = read_weights(start)
    load_weights(make_model(setup, task, "backbone"), weights, f"start {os.fspath(start)!r}")
    return to_bytes(weights)


def _device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not device.startswith(("cpu", "cuda")):
        raise ValueError(f"device {device!r} must be 'cpu' or 'cuda'")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is not available: torch sees no CUDA GPU; use 'cpu'")
    return device


def _config(setup: Setup, task: Task, start: Path_ | None, record: Mapping[str, Any]) -> dict[str, Any]:
    own = {} if isinstance(setup.task, str) else {"data": fingerprint(task)}
    config = {
        "task": task.name,
        "task_options": setup.task_options if isinstance(setup.task, str) else dict(task.options),
        **own,
        "backbone": setup.backbone_name,
        "epochs": setup.epochs,
        "seed": setup.seed,
        "start": None if start is None else str(Path(start).absolute()),
        "device": setup.device,
        **record,
        "versions": versions(),
    }
    # as it will be read again: tuples become lists
    plain: dict[str, Any] = json.loads(json.dumps(config))
    return plain


def _check_same(then: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    other = [key for key in now if key != "versions" and then.get(key) != now[key]]
    if other:
        text = "; ".join(f"{key}: {then.get(key)!r} then, {now[key]!r} now" for key in other)
        raise ValueError(f"{str(folder)!r} holds another run, it cannot be resumed with these arguments: {text}")
