"""Tasks by name: data, loss, metric and the way the paper trains on them."""

if __name__ != "xdnas.tasks":
    raise ImportError("import xdnas.tasks, not tasks")

import difflib
import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

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
        near = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"unknown task {name!r}; {hint}known: {', '.join(TASKS)}")
    known = [
        option for option in inspect.signature(TASKS[name]).parameters if option not in ("data", "seed", "permuted")
    ]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"task {name!r} has no option {option!r}; {hint}it has: {', '.join(known)}")
    return TASKS[name](data=data, seed=seed, **options)
