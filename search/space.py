"""What a search tries: settings of every trial, drawn up front from the seed, plain numbers and names only."""

import math
import random
from typing import Any

from xdnas.tasks.optimizers import ArchSettings
from xdnas.tasks.task import Recipe

Settings = dict[str, Any]
# where the steps of an optimizer are looked for when the recipe names the other one
_CENTRES = {"adam": 1e-3, "sgd": 1e-1}
_WEIGHT_FACTOR = 5.0
_ARCH_FACTOR = 10.0


def weight_settings(recipe: Recipe, trials: int, seed: int, method: str) -> list[Settings]:
    """Step sizes of the model weights: the recipe's, then log-uniform within a factor of 5 around it."""
    rng = random.Random(f"{seed} {method}")
    drawn = [{"lr": _log_uniform(rng, recipe.lr, _WEIGHT_FACTOR)} for _ in range(trials - 1)]
    return [{"lr": recipe.lr}, *drawn]


def architecture_settings(recipe: Recipe, trials: int, seed: int, epochs: int, lr: float) -> list[Settings]:
    """Settings of the architecture's optimizer: the recipe's, then drawn.

    Drawn are SGD or Adam, the step size log-uniform within a factor of 10 around the recipe's (around 1e-3 for Adam and
    1e-1 for SGD if the recipe names the other), momentum 0, 0.5 or 0.9 (SGD only), and a warm-up of none, a tenth or a
    quarter of the epochs.

    Args:
        recipe: gives the first trial and the centre.
        trials: how many.
        seed: the same seed draws the same settings.
        epochs: of every trial.
        lr: step size of the model weights, the same in every trial.
    """
    rng = random.Random(f"{seed} xd")
    centres = {**_CENTRES, recipe.arch_optimizer: recipe.arch_lr}
    warmup = math.floor(recipe.arch_warmup * epochs + 1e-9)
    first = (recipe.arch_optimizer, recipe.arch_lr, recipe.arch_momentum, warmup)
    drawn = [_draw(rng, centres, epochs) for _ in range(trials - 1)]
    names = ("arch_optimizer", "arch_lr", "arch_momentum", "arch_warmup")
    return [{"lr": lr, **dict(zip(names, values, strict=True))} for values in [first, *drawn]]


def arch_settings(settings: Settings) -> ArchSettings | None:
    """The architecture's part of a trial's settings; None if there is none."""
    if "arch_optimizer" not in settings:
        return None
    return ArchSettings(
        settings["arch_optimizer"], settings["arch_lr"], settings["arch_momentum"], settings["arch_warmup"]
    )


def _draw(rng: random.Random, centres: dict[str, float], epochs: int) -> tuple[str, float, float, int]:
    optimizer = rng.choice(("adam", "sgd"))
    lr = _log_uniform(rng, centres[optimizer], _ARCH_FACTOR)
    momentum = rng.choice((0.0, 0.5, 0.9))
    warmup = rng.choice((0.0, 0.1, 0.25))
    return optimizer, lr, momentum if optimizer == "sgd" else 0.0, math.floor(warmup * epochs + 1e-9)


def _log_uniform(rng: random.Random, centre: float, factor: float) -> float:
    # 4 digits are enough to try, and can be read in a table
    return float(f"{centre * factor ** rng.uniform(-1, 1):.4g}")
