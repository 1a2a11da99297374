"""Tasks by name: data, loss, metric and the way the paper trains on them."""

if __name__ != "xdnas.tasks":
    raise ImportError("import xdnas.tasks, not tasks")

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from xdnas.names import near
from xdnas.tasks import burgers, images
from xdnas.tasks.metrics import Metric as Metric
from xdnas.tasks.task import Budget as Budget
from xdnas.tasks.task import Recipe as Recipe
from xdnas.tasks.task import Task as Task

TASKS: dict[str, Callable[..., Task]] = {
    "burgers": burgers.load,
    "cifar10": partial(images.load, permuted=False),
    "cifar10-permuted": partial(images.load, permuted=True),
}
BUDGETS = {"burgers": Budget(4, 20), "cifar10": Budget(4, 10), "cifar10-permuted": Budget(4, 10)}


def load(name: str, *, data: str | os.PathLike[str] | None = None, seed: int = 0, **options: Any) -> Task:
    """The task of this name.

    Args:
        name: one of TASKS.
        data: file or folder with the original data; what it means and its default are the task's.
        seed: of generated data, splits and permutations.
        options: the task's own, see its loader.

    Raises:
        ValueError: for an unknown name (the message has the nearest), an unknown option or one out of range.
        FileNotFoundError: data are missing; the message says where to get them.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}{near(name, TASKS)}; known: {', '.join(TASKS)}")
    known = option_names(name)
    for option in options:
        if option not in known:
            raise ValueError(f"task {name!r} has no option {option!r}{near(option, known)}; it has: {', '.join(known)}")
    return TASKS[name](data=data, seed=seed, **options)


def option_names(name: str) -> list[str]:
    """The options of a task that are its own; "permuted" is bound in its name."""
    return [
        option for option in inspect.signature(TASKS[name]).parameters if option not in ("data", "seed", "permuted")
    ]
