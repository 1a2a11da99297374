"""What tells one task or network of the user's own from another: hashes of numbers, names of functions."""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import xdnas.tasks
from xdnas.tasks.task import Task


def is_registered(task: Task) -> bool:
    """Whether `load(task.name, **task.options)` gives this very task, so that its name can stand for it."""
    if task.name not in xdnas.tasks.TASKS:
        return False
    other = xdnas.tasks.load(task.name, **task.options)
    same = (task.loss, task.metric, task.augment) == (other.loss, other.metric, other.augment)
    return same and fingerprint(task) == fingerprint(other)


def fingerprint(task: Task) -> dict[str, Any]:
    """Its samples as a hash, recipes and rivals as text, functions by their names."""
    sets = (task.train, task.valid, task.test)
    return {
        "data": _hash(tensor for part in sets for tensor in part.tensors),
        "loss": _name(task.loss),
        "metric": f"{task.metric.name}, {_name(task.metric.values)}",
        "augment": _name(task.augment),
        "rivals": dict(task.rivals),
        "recipes": {name: repr(recipe) for name, recipe in task.recipes.items()},
    }


def network_fingerprint(network: nn.Module, *, weights: bool) -> dict[str, str]:
    """Its printed form as a hash, and that of its state_dict unless the weights come from elsewhere."""
    printed = re.sub(r" at 0x[0-9a-f]+", "", repr(network))
    state = [(n, v) for n, v in network.state_dict().items() if isinstance(v, Tensor) and not is_lazy(v)]
    layers = hashlib.sha256("\n".join([printed, *(name for name, _ in state)]).encode()).hexdigest()[:16]
    return {"layers": layers, **({"weights": _hash(value for _, value in state)} if weights else {})}


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        # bytes of any dtype: numpy knows no bfloat16
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _name(function: Callable[..., Any] | None) -> str | None:
    """The name of a function without its module: a script is `__main__` at one time and imported at another."""
    if function is None:
        return None
    return str(getattr(function, "__qualname__", type(function).__qualname__))
