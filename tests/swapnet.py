"""A network with everything that a swap must keep, and a record of what it had."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Batch norm, grouped, strided, reflecting and shared convolutions, an unreached head, dropout."""

    # swaps change their types
    stem: Any
    norm: Any
    body: Any
    twice: Any
    alias: Any
    down: Any
    head: Any
    aux: Any

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.ModuleDict({"a": nn.Conv2d(8, 8, 3, padding=1, groups=2, padding_mode="reflect")})
        self.twice = nn.Conv2d(8, 8, (3, 1), padding="same", bias=False)
        self.alias = self.twice
        self.down = nn.Conv2d(8, 8, 3, stride=2, dilation=2, padding=2, padding_mode="circular")
        self.head = nn.Linear(8, 4)
        self.aux = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = self.twice(self.alias(self.body["a"](x)))
        x = nn.functional.dropout(self.down(x), training=self.training)
        y: Tensor = self.head(x.mean((-2, -1)))
        return y


SWAPPED = ["stem", "body.a", "twice", "down"]


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a swap must not change, by identity or value."""
    return {
        "modules": {name: id(m) for name, m in model.named_modules(remove_duplicate=False)},
        "parameters": {
            name: (id(p), p._version, p.requires_grad, p.grad is None) for name, p in model.named_parameters()
        },
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "training": {name: m.training for name, m in model.named_modules()},
        "hooks": {
            name: {k: dict(v) for k, v in vars(m).items() if "hook" in k and v} for name, m in model.named_modules()
        },
        "attributes": {name: set(vars(m)) for name, m in model.named_modules()},
        "random": (torch.random.get_rng_state(), random.getstate(), str(np.random.get_state())),
    }


def assert_same_state(now: dict[str, Any], before: dict[str, Any]) -> None:
    for key in ("state",):
        assert list(now[key]) == list(before[key])
        assert all(torch.equal(now[key][name], before[key][name]) for name in before[key])
    assert torch.equal(now["random"][0], before["random"][0])
    assert now["random"][1:] == before["random"][1:]
    for key in ("modules", "parameters", "training", "hooks", "attributes"):
        assert now[key] == before[key], key
