"""One trial: a model made from names and a seed, trained in its own folder, continued where it was stopped."""

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import xdnas.backbones
import xdnas.tasks
from xdnas.params import architecture_parameters
from xdnas.search.runfolder import read_trial, trial_folder, write_epochs, write_status
from xdnas.search.space import arch_settings
from xdnas.swap import swap
from xdnas.tasks.savepoint import load_weights, read_tensors
from xdnas.tasks.task import Recipe, Task
from xdnas.tasks.train import Diverged, Epoch, fit

SUPERNETS = ("frozen", "xd")


@dataclass(frozen=True)
class Setup:
    """What all trials of a run share.

    Attributes:
        folder: of the run.
        task: a Task of the user's own, or the name that `xdnas.tasks.load` knows.
        backbone: a network of the user's own, or the name that `xdnas.backbones.build` knows.
        epochs, seed: of every trial.
        device: where models are trained.
        task_options: of `load`, for a name.
        start: checkpoint with weights of the backbone.
    """

    folder: Path
    task: str | Task
    backbone: str | nn.Module
    epochs: int
    seed: int
    device: str = "cpu"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    start: Path | None = None

    @property
    def backbone_name(self) -> str:
        """Its registered name, or its class."""
        return self.backbone if isinstance(self.backbone, str) else type(self.backbone).__name__

    def load_task(self) -> Task:
        """The task; a named one is loaded once per process."""
        return self.task if isinstance(self.task, Task) else _load(self.task, json.dumps(dict(self.task_options)))

    def network(self, task: Task, method: str) -> str | nn.Module:
        """The network that a method starts from."""
        return task.rivals.get(method, self.backbone)

    def recipe(self, task: Task, method: str) -> Recipe:
        """How the task trains the model weights of that network."""
        return task.recipe(task.rivals.get(method, self.backbone_name))


@functools.lru_cache(maxsize=1)
def _load(name: str, options: str) -> Task:
    return xdnas.tasks.load(name, **json.loads(options))


def make_model(setup: Setup, task: Task, method: str) -> nn.Module:
    """The network of a method before training; the same seed gives the same weights, whatever the method.

    Raises:
        ValueError: an unknown backbone, or a start that does not fit it.
        SwapError: a backbone that cannot become a supernet.
    """
    network, recipe = setup.network(task, method), setup.recipe(task, method)
    with torch.random.fork_rng():
        torch.manual_seed(setup.seed)
        model = xdnas.backbones.build(network) if isinstance(network, str) else copy.deepcopy(network)
    if setup.start is not None and method not in task.rivals:
        load_weights(model, read_tensors(setup.start), f"start {str(setup.start)!r}")
    if method in SUPERNETS:
        example = task.train[:2][0].to(next(model.parameters()).device)
        swap(model, example, exclude=recipe.exclude or None, **recipe.swap_options)
    if method == "frozen":
        for parameter in architecture_parameters(model):
            parameter.requires_grad_(False)
    return model.to(setup.device)


def run_trial(setup: Setup, task: Task, name: str) -> Iterator[Epoch]:
    """Train one trial, continuing from its checkpoint if it has one; yields every epoch once its files are written.

    Raises:
        Diverged: when it diverged; its folder says so.
    """
    own = trial_folder(setup.folder, name)
    for torn in own.glob(".*"):
        torn.unlink()
    trial = read_trial(own)
    recipe = replace(setup.recipe(task, trial.method), lr=trial.settings["lr"])
    checkpoint = own / "checkpoint.pt"
    epochs: list[Epoch] = []
    try:
        for epoch in fit(
            make_model(setup, task, trial.method),
            task,
            recipe,
            epochs=setup.epochs,
            settings=arch_settings(trial.settings),
            seed=setup.seed,
            checkpoint=checkpoint,
            resume=checkpoint.is_file(),
            log=own,
        ):
            epochs.append(epoch)
            write_epochs(own, epochs)
            # the process may be ended while it hands over its last epoch
            if epoch.number == setup.epochs:
                write_status(own, "finished")
            yield epoch
    except Diverged:
        write_status(own, "diverged")
        raise


def trained_model(setup: Setup, task: Task, method: str, weights: Path) -> nn.Module:
    """The network of a method with the weights of a file, on the device of the run."""
    model = make_model(setup, task, method)
    load_weights(model, read_tensors(weights), f"checkpoint {str(weights)!r}")
    return model
