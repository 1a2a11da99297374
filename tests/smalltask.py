"""A task and networks small enough to train in a test."""

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from xdnas.tasks.metrics import RELATIVE_L2, mean_relative_l2
from xdnas.tasks.task import Recipe, Task

SIZE = 16


RECIPE = Recipe("adam", 3e-3, weight_decay=1e-4, batch_size=10, milestones=((0.5, 0.5),), arch_lr=1e-2)


def small_task(**changes: Any) -> Task:
    """Shift a random signal by 5 places and blur it."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, 1, SIZE, generator=generator)
    data = TensorDataset(x, x.roll(5, -1) + 0.5 * x.roll(6, -1))
    train, valid, test = (TensorDataset(*data[a:b]) for a, b in ((0, 30), (30, 40), (40, 50)))
    task = Task(train, valid, test, mean_relative_l2, RELATIVE_L2, "small", recipes={"Net": RECIPE})
    return dataclasses.replace(task, **changes)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(1, 4, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv1d(4, 1, 3, padding=1, padding_mode="circular"),
        )


def net(seed: int = 0) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()
