"""Wrong inputs of plan, swap, restore and the architecture files: (id, call, exception, message)."""

import re
from collections.abc import Callable

import torch
from torch import nn

from xdnas.checkpoint import CheckpointError, load_architecture, save_architecture
from xdnas.plan import plan
from xdnas.report import SwapError
from xdnas.restore import restore
from xdnas.swap import swap
from xdnas.xd import XD


def _net() -> nn.Sequential:
    block = nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.ReLU())
    return nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), block, nn.Flatten(), nn.Linear(16, 2))


def _swap(model: nn.Module | None = None, **arguments: object) -> object:
    return swap(_net() if model is None else model, torch.zeros(1, 1, 8), **arguments)  # type: ignore[arg-type]


def _compiled() -> nn.Module:
    model = _net()
    model.compile(backend="eager")
    return model


ROWS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("swap: no module", lambda: swap("resnet", torch.zeros(1)), TypeError, "takes a torch.nn.Module, got str"),  # type: ignore[arg-type]
    ("swap: no sample", lambda: swap(_net()), SwapError, "give a sample input"),
    ("swap: wrong sample", lambda: swap(_net(), torch.zeros(1, 5, 8)), SwapError, "does not run on the sample input"),
    (
        "swap: no convolution",
        lambda: _swap(nn.Linear(8, 2)),
        SwapError,
        "has no convolution, only Linear; supported: Conv1d",
    ),
    ("swap: is the conv", lambda: _swap(nn.Conv1d(1, 1, 3)), SwapError, "model itself is a Conv1d.*wrap it"),
    (
        "swap: glob",
        lambda: _swap(include="1.O"),
        SwapError,
        r"matches no convolution \(did you mean '1.0'.*: '0', '1.0'",
    ),
    ("swap: container", lambda: _swap(include="1"), SwapError, r"but '1' holds some: write '1\.\*'"),
    ("swap: exclude container", lambda: _swap(exclude="1"), SwapError, r"but '1' holds some: write '1\.\*'"),
    ("swap: exclude typo", lambda: _swap(exclude="linear"), SwapError, "exclude 'linear' matches no convolution"),
    ("swap: regex", lambda: _swap(include=re.compile("conv")), SwapError, "include 'conv' matches no convolution"),
    ("swap: type", lambda: _swap(include=nn.Conv2d), SwapError, "include Conv2d matches no convolution"),
    ("swap: linear", lambda: _swap(include="3"), SwapError, "'3' is a Linear, supported are Conv1d"),
    ("swap: pattern kind", lambda: _swap(include=3), TypeError, "include takes a glob.*got 3"),
    ("swap: empty include", lambda: _swap(include=[]), SwapError, "include is empty"),
    ("swap: all excluded", lambda: _swap(exclude="*"), SwapError, r"no convolution is left.*excluded by '\*'"),
    ("swap: where", lambda: _swap(where=lambda n, m: False), SwapError, "left out by where"),
    ("swap: option", lambda: _swap(dept=3), SwapError, r"unknown option 'dept' \(did you mean 'depth'\?\)"),
    ("swap: depth", lambda: _swap(depth=0), SwapError, "layer '0': XD: depth 0"),
    ("swap: size", lambda: _swap(size=4), SwapError, "layer '0': XD: size 4 is too small"),
    ("swap: tolerance", lambda: _swap(tolerance=1e-12), SwapError, "tolerance 2.4e-07; the swap is undone|differs by"),
    ("swap: compact", lambda: _swap(compact=2), SwapError, "layer '0': XD: compact 2 must be True or False"),
    ("swap: causal", lambda: _swap(causal="on"), SwapError, "layer '0': XD: causal 'on' must be one of False, True"),
    (
        "swap: causal padding",
        lambda: _swap(causal=True),
        SwapError,
        r"layer '0': XD: causal=True needs .*dilation=2; given .*padding=\(1,\)",
    ),
    (
        "swap: triangular",
        lambda: swap(nn.Sequential(nn.Conv1d(1, 1, 3, padding=2)), torch.ones(1, 1, 8), causal="triangular"),
        SwapError,
        "no convolution is left to swap .*'0': a triangular layer starts at kernel size 1, not at 3",
    ),
    (
        "swap: lazy",
        lambda: _swap(nn.Sequential(nn.LazyConv1d(2, 3))),
        SwapError,
        "layers '0' are lazy; run the model once",
    ),
    ("swap: compiled", lambda: _swap(_compiled()), SwapError, "the model is compiled; swap first"),
    ("plan: as swap", lambda: plan(_net(), torch.zeros(1, 1, 8), include="x"), SwapError, "matches no convolution"),
    ("restore: nothing", lambda: restore(_net()), SwapError, "no XD layer to restore"),
    ("restore: itself", lambda: restore(XD(1, 1, 3, 8)), SwapError, "itself is an XD layer"),
    (
        "save: nothing",
        lambda: save_architecture(_net(), "x.safetensors"),
        CheckpointError,
        "no XD layer; call xdnas.swap",
    ),
    (
        "save: no folder",
        lambda: save_architecture(XD(1, 1, 3, 8), "/no/such/x"),
        FileNotFoundError,
        "/no/such does not exist",
    ),
    (
        "load: no file",
        lambda: load_architecture(XD(1, 1, 3, 8), "/no/such/x"),
        FileNotFoundError,
        "no architecture file at",
    ),
]
