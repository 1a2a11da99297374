"""The training loop.

Model weights move by the recipe of the backbone, architecture parameters by an optimizer of their own; both take their
gradients from the same loss, and both follow the same schedule, which is 0 for the architecture during its warm-up
(Roberts et al. 2021, "Rethinking Neural Operations for Diverse Tasks", section 4 and its code).
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from xdnas.files import write_atomic
from xdnas.params import architecture_parameters, distance_from_start
from xdnas.tasks.metrics import Metric
from xdnas.tasks.modes import check_last_batch, in_mode, without_gradients
from xdnas.tasks.optimizers import ArchSettings as ArchSettings
from xdnas.tasks.optimizers import optimizers_of
from xdnas.tasks.savepoint import FORMAT, load_weights, read_tensors, to_bytes
from xdnas.tasks.task import Recipe, Task

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Diverged(ArithmeticError):
    """The loss or the validation metric is no longer finite."""


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave.

    Attributes:
        number: counted from 1.
        train_loss: mean loss over the training samples while they were trained on.
        valid: the task's metric on the validation set after the epoch; lower is better.
        seconds: wall time of training and validation.
        distance: how far every XD layer is from its start, {layer: {"K": ..., ...}}.
    """

    number: int
    train_loss: float
    valid: float
    seconds: float
    distance: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainResult:
    """The outcome of training one model.

    Attributes:
        name: the method, e.g. "backbone" or "xd".
        valid: validation metric after every epoch.
        test: test metric of the last epoch; nan for a diverged run.
        seconds: training time.
        diverged: the loss was not finite; there are fewer epochs then.
        settings: what it was trained with.
        folder: the run folder.
    """

    name: str
    valid: list[float]
    test: float
    seconds: float
    diverged: bool
    settings: dict[str, Any]
    folder: Path


def fit(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    epochs: int,
    settings: ArchSettings | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    log: Path | None = None,
) -> Iterator[Epoch]:
    """Train a model in place, where it is (CPU or GPU), and yield every epoch when it is done and saved.

    The random numbers of an epoch depend on the seed and its number only: on a CPU two runs agree bit for bit, and so
    does a run that was stopped and resumed. The training set is copied to the model's device as a whole.
    Modules keep their modes: those that were left in evaluation mode in a model in training mode are trained in it.

    Args:
        model: any network; architecture parameters are those of its XD layers (xdnas.params).
        task: data, loss and metric.
        recipe: optimizer, step size, batch size and schedule of the model weights.
        epochs: how many; the schedule spans them.
        settings: how the architecture parameters are trained; None or lr 0: they stay where they are.
        seed: of shuffling, augmentation and dropout.
        checkpoint: file written after every epoch.
        resume: continue from that file; its epochs are yielded again first.
        log: folder for TensorBoard: loss, metric and distances from the start.

    Raises:
        ValueError: for settings that make no sense, a last batch of one sample that a batch norm cannot take, or a
            checkpoint that is broken or of another run.
        FileNotFoundError: when there is nothing to resume from.
        Diverged: while iterating, when loss or validation metric are not finite.
    """
    if epochs < 1:
        raise ValueError(f"fit: epochs {epochs} must be at least 1")
    if resume and checkpoint is None:
        raise ValueError("fit: resume=True needs checkpoint=, the file to continue from")
    if seed < 0:
        raise ValueError(f"fit: seed {seed} must be 0 or more")
    plan = {"epochs": epochs, "seed": seed, "settings": asdict(settings) if settings else None, **_plain(recipe)}
    state = _State(model, recipe, settings, epochs)
    check_last_batch(model, task.train.tensors[0], recipe.batch_size)
    if resume:
        assert checkpoint is not None
        state.load(checkpoint, plan)
    return _run(state, task, recipe, plan, checkpoint, log)


@torch.no_grad()
def evaluate(model: nn.Module, dataset: TensorDataset, metric: Metric, batch_size: int) -> float:
    """Mean of the metric over a data set, in evaluation mode; every module's mode is as before afterwards.

    Raises:
        ValueError: the metric does not give one value per sample.
    """
    device = device_of(model)
    total = torch.zeros((), device=device)
    x, y = dataset.tensors
    with in_mode(model, training=False):
        for inputs, targets in zip(x.split(batch_size), y.split(batch_size), strict=True):
            values = metric.values(model(inputs.to(device)), targets.to(device))
            if values.shape != (len(inputs),):
                raise ValueError(
                    f"metric {metric.name!r} gave shape {tuple(values.shape)} for {len(inputs)} samples; it must give "
                    f"one value per sample, shape ({len(inputs)},)"
                )
            total += values.sum()
    return float(total) / len(x)


def device_of(model: nn.Module) -> torch.device:
    """Where the first parameter of a model is."""
    return next(model.parameters()).device


class _State:
    """Everything that a resumed run needs."""

    def __init__(self, model: nn.Module, recipe: Recipe, settings: ArchSettings | None, epochs: int) -> None:
        self.model = model
        self.history: list[Epoch] = []
        self.optimizers, self.schedules = optimizers_of(model, recipe, settings, epochs)
        trained = {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}
        self.untrained = [p for p in architecture_parameters(model) if id(p) not in trained]

    def save(self, path: Path, plan: dict[str, Any]) -> None:
        state = {
            "format": FORMAT,
            "plan": plan,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "history": [asdict(epoch) for epoch in self.history],
        }
        write_atomic(path, to_bytes(state))

    def load(self, path: Path, plan: dict[str, Any]) -> None:
        state = read_tensors(path)
        if state.get("format") != FORMAT or not isinstance(state.get("plan"), dict):
            raise ValueError(f"checkpoint {str(path)!r} is not one of a training run (format {FORMAT})")
        other = {key: state["plan"].get(key) for key in plan if state["plan"].get(key) != plan[key]}
        if other:
            given = {key: plan[key] for key in other}
            raise ValueError(f"checkpoint {str(path)!r} is of another run: it has {other}, this run has {given}")
        load_weights(self.model, state["model"], f"checkpoint {str(path)!r}")
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for schedule, position in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(position)
        self.history = [Epoch(**epoch) for epoch in state["history"]]


def _run(
    state: _State, task: Task, recipe: Recipe, plan: dict[str, Any], checkpoint: Path | None, log: Path | None
) -> Iterator[Epoch]:
    yield from list(state.history)
    device = device_of(state.model)
    data = tuple(tensor.to(device) for tensor in task.train.tensors)
    with ExitStack() as stack:
        writer = _writer(log, len(state.history) + 1, stack)
        for number in range(len(state.history) + 1, plan["epochs"] + 1):
            began = time.perf_counter()
            loss = _one_epoch(state, task, data, recipe.batch_size, plan["seed"], number)
            valid = evaluate(state.model, task.valid, task.metric, recipe.batch_size)
            if not (math.isfinite(loss) and math.isfinite(valid)):
                raise Diverged(f"epoch {number}: loss {loss}, validation {task.metric.name} {valid}")
            seconds = time.perf_counter() - began
            for schedule in state.schedules:
                schedule.step()
            state.history.append(Epoch(number, loss, valid, seconds, distance_from_start(state.model)))
            if checkpoint is not None:
                state.save(checkpoint, plan)
            if writer is not None:
                _write_scalars(writer, state.history[-1], task.metric.name)
            yield state.history[-1]


def _one_epoch(state: _State, task: Task, data: tuple[Tensor, ...], batch_size: int, seed: int, number: int) -> float:
    x, y = data
    order, augment, other = (int(s) for s in np.random.SeedSequence([seed, number]).generate_state(3))
    indices = torch.randperm(len(x), generator=torch.Generator().manual_seed(order)).to(x.device)
    generator = torch.Generator(x.device).manual_seed(augment)
    total = torch.zeros((), device=x.device)
    with (
        in_mode(state.model, training=True),
        without_gradients(state.untrained),
        torch.random.fork_rng([x.device] if x.is_cuda else []),
    ):
        torch.manual_seed(other)
        for batch in indices.split(batch_size):
            inputs = x[batch] if task.augment is None else task.augment(x[batch], generator)
            loss = task.loss(state.model(inputs), y[batch])
            if loss.ndim:
                raise ValueError(
                    f"fit: the task's loss gave shape {tuple(loss.shape)}; it must be one number, a mean over the batch"
                )
            for optimizer in state.optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in state.optimizers:
                optimizer.step()
            total += loss.detach() * len(batch)
    return float(total) / len(x)


def _plain(recipe: Recipe) -> dict[str, Any]:
    names = ("optimizer", "lr", "momentum", "weight_decay", "batch_size")
    return {**{name: getattr(recipe, name) for name in names}, "milestones": [list(m) for m in recipe.milestones]}


def _writer(log: Path | None, first: int, stack: ExitStack) -> "SummaryWriter | None":
    if log is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(log), purge_step=first if first > 1 else None)
    stack.callback(writer.close)
    return writer


def _write_scalars(writer: "SummaryWriter", epoch: Epoch, metric: str) -> None:
    scalars = {"loss": epoch.train_loss, f"validation {metric}": epoch.valid}
    for layer, parts in epoch.distance.items():
        scalars.update({f"distance/{layer}/{part}": value for part, value in parts.items()})
    for tag, value in scalars.items():
        writer.add_scalar(tag, value, epoch.number)
    writer.flush()
