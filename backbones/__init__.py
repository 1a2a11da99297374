"""Plain networks by name: the convolutional backbones that a search starts from, and expert networks beside them."""

if __name__ != "xdnas.backbones":
    raise ImportError("import xdnas.backbones, not backbones")

import difflib
from collections.abc import Callable
from typing import Any

from torch import nn

from xdnas.backbones.fno import FNO as FNO
from xdnas.backbones.lenet import LeNet as LeNet
from xdnas.backbones.pde import PDENet as PDENet
from xdnas.backbones.resnet import ResNet as ResNet
from xdnas.backbones.resnet import resnet20 as resnet20

BACKBONES: dict[str, Callable[..., nn.Module]] = {"lenet": LeNet, "resnet20": resnet20, "pde": PDENet, "fno": FNO}


def build(name: str, **options: Any) -> nn.Module:
    """The backbone of this name with fresh weights from torch's global generator; options go to its constructor.

    Raises:
        ValueError: for an unknown name or option; the message has the nearest names.
    """
    if name not in BACKBONES:
        near = difflib.get_close_matches(name, BACKBONES, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"unknown backbone {name!r}; {hint}known: {', '.join(BACKBONES)}")
    try:
        return BACKBONES[name](**options)
    except TypeError as error:
        raise ValueError(f"backbone {name!r} does not take these options {options}: {error}") from error
