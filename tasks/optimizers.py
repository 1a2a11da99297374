"""Stock optimizers and schedules for model weights and architecture parameters."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from xdnas.params import architecture_parameters, model_weights
from xdnas.tasks.task import Recipe

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class ArchSettings:
    """How the architecture parameters are trained; weight decay never touches them.

    Attributes:
        optimizer: "sgd" or "adam".
        lr: step size at the start of the schedule; 0 freezes the architecture.
        momentum: of SGD; Adam keeps its own betas.
        warmup: epochs at the start during which only model weights move.
    """

    optimizer: str = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        check_optimizer("ArchSettings", self.optimizer, self.lr, self.momentum)
        if self.warmup < 0:
            raise ValueError(f"ArchSettings: warmup {self.warmup} must be 0 or more epochs")


def optimizers_of(
    model: nn.Module, recipe: Recipe, settings: ArchSettings | None, epochs: int
) -> tuple[list[torch.optim.Optimizer], list[LambdaLR]]:
    """An optimizer for the model weights and, unless the architecture is frozen, one for its parameters.

    Each has a schedule to be stepped once per epoch: `lr_factor`, and 0 for the architecture during its warm-up.

    Raises:
        ValueError: the recipe makes no sense, or the model has nothing to train.
    """
    check_optimizer("Recipe", recipe.optimizer, recipe.lr, recipe.momentum)
    if not isinstance(recipe.batch_size, int) or recipe.batch_size < 1:
        raise ValueError(f"Recipe: batch_size {recipe.batch_size!r} must be a whole number above 0")
    weights = list(model_weights(model))
    if not weights:
        raise ValueError(f"fit: {type(model).__name__} has no model weights to train")
    optimizers = [_optimizer(recipe.optimizer, weights, recipe.lr, recipe.momentum, recipe.weight_decay)]
    schedules = [LambdaLR(optimizers[0], lambda epoch: lr_factor(recipe, epoch, epochs))]
    architecture = [parameter for parameter in architecture_parameters(model) if parameter.requires_grad]
    if settings is not None and settings.lr > 0 and architecture:
        warmup = settings.warmup
        optimizers.append(_optimizer(settings.optimizer, architecture, settings.lr, settings.momentum, 0.0))
        schedules.append(
            LambdaLR(optimizers[1], lambda epoch: lr_factor(recipe, epoch, epochs) if epoch >= warmup else 0.0)
        )
    return optimizers, schedules


def lr_factor(recipe: Recipe, epoch: int, epochs: int) -> float:
    """Factor on the starting step size in an epoch counted from 0: the last milestone (fraction, factor) passed."""
    passed = [f for fraction, f in sorted(recipe.milestones) if epoch >= fraction * epochs - 1e-9]
    return passed[-1] if passed else 1.0


def _optimizer(
    name: str, parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


def check_optimizer(what: str, name: str, lr: float, momentum: float) -> None:
    """Refuse an unknown optimizer, and a step size or momentum out of range, in the name of `what`."""
    if name not in OPTIMIZERS:
        raise ValueError(f"{what}: unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}")
    if not (math.isfinite(lr) and lr >= 0):
        raise ValueError(f"{what}: lr {lr} must be a finite number, 0 or more")
    if not 0 <= momentum < 1:
        raise ValueError(f"{what}: momentum {momentum} must be at least 0 and below 1")
