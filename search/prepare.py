"""Everything that can be checked before a run starts, and its folder."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import xdnas.tasks
from xdnas.files import write_atomic
from xdnas.search.identity import fingerprint, is_registered, network_fingerprint
from xdnas.search.runfolder import new_folder, read_json, versions, write_json
from xdnas.search.trial import Setup, make_model
from xdnas.tasks.savepoint import load_weights, read_weights, to_bytes
from xdnas.tasks.task import Task

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Given:
    """What `search` and `train` are given alike; see there."""

    task: str | Task
    backbone: str | nn.Module | None
    epochs: int
    seed: int = 0
    out: AnyPath | None = None
    resume: bool = False
    start: AnyPath | None = None
    data: AnyPath | None = None
    task_options: Mapping[str, Any] | None = None
    device: str | None = None

    @property
    def name(self) -> str:
        """Of the task."""
        return self.task if isinstance(self.task, str) else self.task.name


def prepare(given: Given, methods: tuple[str, ...], record: Mapping[str, Any]) -> tuple[Setup, Task]:
    """Check a run and make its folder, or check that a folder holds the same run.

    Args:
        given: the user's arguments.
        methods: whose networks are built once to see that they can be; others are ignored.
        record: what else config.json should tell.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: say what is wrong; nothing has been written then.
    """
    _check(given)
    folder = Path(str(given.out)).absolute() if given.resume else new_folder(given.out, given.name)
    loaded, reference = _task(given)
    options = dict(loaded.options) if isinstance(reference, str) else {}
    network = _network(given, loaded)
    setup = Setup(folder, reference, network, given.epochs, given.seed, _device(given.device), options)
    own_start = None if given.start is None else folder / "start.pt"
    # a run keeps its start, so that it can go on when the original has been moved
    weights = _start(setup, loaded, own_start if given.resume else given.start)
    for method in methods:
        make_model(setup, loaded, method)
    config = _config(setup, loaded, given.start, record)
    if given.resume:
        _check_same(read_json(folder / "config.json"), config, folder)
    else:
        _make_folder(folder, weights, config)
    return replace(setup, start=own_start), loaded


def _check(given: Given) -> None:
    if given.epochs < 1:
        raise ValueError(f"epochs {given.epochs} must be at least 1")
    if given.seed < 0:
        raise ValueError(f"seed {given.seed} must be 0 or more")
    if given.resume and given.out is None:
        raise ValueError("resume=True needs out=, the run folder to continue")
    if given.resume and not (Path(str(given.out)) / "config.json").is_file():
        raise FileNotFoundError(f"nothing to resume in {str(given.out)!r}: it holds no config.json")


def _network(given: Given, task: Task) -> str | nn.Module:
    network = task.backbone if given.backbone is None else given.backbone
    if isinstance(network, str) and not network:
        raise ValueError(
            f"task {task.name!r} has no backbone of its own; give one, e.g. backbone='resnet20' or a model"
        )
    return network


def _make_folder(folder: Path, start: bytes | None, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    if start is not None:
        write_atomic(folder / "start.pt", start)
    write_json(folder / "config.json", config)


def _task(given: Given) -> tuple[Task, str | Task]:
    """The task, and what stands for it in a worker: its name if that is enough."""
    task, data, options = given.task, given.data, given.task_options or {}
    if isinstance(task, str):
        where: dict[str, Any] = {} if data is None else {"data": os.fspath(data)}
        return xdnas.tasks.load(task, **{**where, **options}), task
    if data is not None or options:
        raise ValueError("data= and task_options= belong to a task given by name; a Task object has its data already")
    return task, task.name if is_registered(task) else task


def _start(setup: Setup, task: Task, start: AnyPath | None) -> bytes | None:
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


def _config(setup: Setup, task: Task, start: AnyPath | None, record: Mapping[str, Any]) -> dict[str, Any]:
    own_task = {} if isinstance(setup.task, str) else fingerprint(task)
    network = setup.backbone
    own_network = {} if isinstance(network, str) else network_fingerprint(network, weights=start is None)
    config = {
        "task": task.name,
        "task_options": setup.task_options if isinstance(setup.task, str) else dict(task.options),
        **own_task,
        "backbone": setup.backbone_name,
        **own_network,
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
    """A run may go on with other versions and on another device, with nothing else changed."""
    other = [key for key in now if key not in ("versions", "device") and then.get(key) != now[key]]
    if other:
        text = "; ".join(f"{key}: {then.get(key)!r} then, {now[key]!r} now" for key in other)
        hint = ". Seed torch before you make the network, or give its weights as start" if "weights" in other else ""
        raise ValueError(f"{str(folder)!r} holds another run, it cannot be resumed with these arguments: {text}{hint}")
