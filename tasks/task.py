"""What a task is: data, loss, metric, and how the paper trains on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from xdnas.tasks.metrics import Metric


@dataclass(frozen=True)
class Recipe:
    """How a backbone is trained on a task, and where the settings of its architecture optimizer are looked for.

    Attributes:
        optimizer: of the model weights, "sgd" or "adam", with lr, momentum (SGD) and weight_decay.
        batch_size: samples per step.
        milestones: (fraction of the epochs, factor on the starting lr from there on).
        arch_optimizer, arch_lr, arch_momentum: of the architecture parameters, the first that a search tries.
        arch_warmup: fraction of the epochs during which only the model weights move.
        swap_options: of `xdnas.swap`, such as depth.
        exclude: globs of layers that are not swapped.
    """

    optimizer: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 20
    milestones: tuple[tuple[float, float], ...] = ()
    arch_optimizer: str = "adam"
    arch_lr: float = 1e-3
    arch_momentum: float = 0.0
    arch_warmup: float = 0.0
    swap_options: Mapping[str, Any] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budget:
    """How much a search spends unless told otherwise: trials per tuned method, epochs per trial."""

    trials: int
    epochs: int


DEFAULT_RECIPE = Recipe("adam", 1e-3, batch_size=32, milestones=((0.5, 0.5), (0.75, 0.1)))


@dataclass(frozen=True)
class Task:
    """Data, loss and metric.

    Attributes:
        train, valid, test: pairs of inputs (N, C, *size) and targets (N, ...). The network gets the inputs as they are
            (whole numbers, e.g. of tokens, stay whole).
        loss: (prediction, target) to a number, the mean over the batch.
        metric: what is reported and compared.
        name: under which `xdnas.tasks.load` finds it; any for a task of your own.
        options: what `load` was given: `load(name, **options)` gives the same task again in another process.
        augment: (inputs, generator) to inputs, applied to training batches.
        baselines: test metric of trivial predictors.
        backbone: the name of the default backbone.
        rivals: other networks trained beside it, {method: backbone name}.
        recipes: {backbone name: recipe}.

    Raises:
        TypeError: a set that is no TensorDataset, a metric that is no Metric.
        ValueError: a set that is empty or no pair, or inputs that are not finite.
    """

    train: TensorDataset
    valid: TensorDataset
    test: TensorDataset
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Metric
    name: str = "own"
    options: Mapping[str, Any] = field(default_factory=dict)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    backbone: str = ""
    rivals: Mapping[str, str] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            _check_set(f"Task: {name}", getattr(self, name))
        if not isinstance(self.metric, Metric):
            raise TypeError(
                f"Task: metric {self.metric!r} must be an xdnas.tasks.Metric: Metric(name, function to one value per "
                "sample)"
            )

    def recipe(self, backbone: str) -> Recipe:
        """The recipe for a backbone; for one that the task does not know, Adam at 1e-3 with batches of 32."""
        return self.recipes.get(backbone, DEFAULT_RECIPE)


def _check_set(what: str, dataset: TensorDataset) -> None:
    if not isinstance(dataset, TensorDataset):
        raise TypeError(f"{what} must be torch.utils.data.TensorDataset(inputs, targets), not {type(dataset).__name__}")
    if len(dataset.tensors) != 2 or len(dataset) == 0:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in dataset.tensors)
        raise ValueError(f"{what} must be inputs and targets of one sample or more; it has tensors of shape {shapes}")
    inputs = dataset.tensors[0]
    if inputs.is_floating_point() or inputs.is_complex():
        broken = int((~torch.isfinite(inputs)).reshape(len(inputs), -1).any(1).sum())
        if broken:
            raise ValueError(f"{what}: {broken} of {len(inputs)} inputs are not finite (nan or inf); leave them out")
