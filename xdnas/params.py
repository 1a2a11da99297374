"""Architecture parameters and model weights told apart, and how far the architecture has moved from its start.

The one rule: a parameter is an *architecture parameter* when it belongs to an `XD` module and its path below that
module starts with K, L, M, b or C. Every other parameter of the network is a *model weight*.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from xdnas.kmatrix import KMatrix, as_complex
from xdnas.kronecker import Kronecker
from xdnas.warmstart import Start
from xdnas.xd import XD

ARCHITECTURE = ("K", "L", "M", "b", "C")
_COLUMNS = 512


def xd_layers(model: nn.Module) -> dict[str, XD]:
    """The XD modules of a model by name, each shared one once, under its first name ('' is the model itself)."""
    return {name: module for name, module in model.named_modules() if isinstance(module, XD)}


def named_architecture_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters of every K, L, M, b and C in `model`, shared ones once, in the order of `parameters()`."""
    ids = _architecture_ids(model)
    return ((name, parameter) for name, parameter in model.named_parameters() if id(parameter) in ids)


def architecture_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Every K, L, M, b and C in `model`, shared ones once."""
    return (parameter for _, parameter in named_architecture_parameters(model))


def named_model_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters of everything that is not architecture: kernels, biases, norms, other layers."""
    ids = _architecture_ids(model)
    return ((name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in ids)


def model_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Every parameter of `model` that is not architecture, shared ones once."""
    return (parameter for _, parameter in named_model_weights(model))


def parameter_groups(model: nn.Module, *, arch_lr: float | None = None, **options: Any) -> list[dict[str, Any]]:
    """Two parameter groups for any stock optimizer: model weights, then architecture parameters.

    Args:
        model: the network.
        arch_lr: step size of the architecture parameters; None leaves the optimizer's own.
        options: settings of the group of model weights, e.g. `lr=0.1, weight_decay=5e-4`.

    The architecture group has `weight_decay=0.0`: decay would pull K, L and M towards zero, away from the start.
    A model without XD layers gives the first group only.
    """
    groups: list[dict[str, Any]] = [{"params": list(model_weights(model)), **options}]
    architecture = list(architecture_parameters(model))
    if architecture:
        rate = {} if arch_lr is None else {"lr": arch_lr}
        groups.append({"params": architecture, "weight_decay": 0.0, **rate})
    return groups


@torch.no_grad()
def distance_from_start(model: nn.Module) -> dict[str, dict[str, float]]:
    """How far each XD layer's K, L, M, b and C are from the warm start, as {layer: {"K": ..., "L": ..., ...}}.

    K, L and M: ||K - K0|| / ||K0|| in the Frobenius norm of the whole matrix (the Kronecker product over the axes).
    b and C: the root mean square of the change per complex entry (C starts at ones, so that is relative; b at zeros).
    Shared layers are counted once, under their first name. Nothing is cached or changed, the random state included.
    """
    starts: dict[tuple[object, ...], Start] = {}
    return {name: _distances(layer, starts) for name, layer in xd_layers(model).items()}


def _architecture_ids(model: nn.Module) -> set[int]:
    return {
        id(parameter)
        for layer in xd_layers(model).values()
        for path, parameter in layer.named_parameters()
        if path.removeprefix("parametrizations.").split(".")[0] in ARCHITECTURE
    }


def _distances(layer: XD, starts: dict[tuple[object, ...], Start]) -> dict[str, float]:
    key = (layer.n, layer.depth, layer.K[0].factors.dtype, layer.causal == "triangular")
    if key not in starts:
        starts[key] = layer.warm_start()
    pairs = zip("KLM", (layer.K, layer.L, layer.M), starts[key], strict=True)
    distances = {name: _kronecker_distance(now, start) for name, now, start in pairs}
    if layer.b is not None:
        distances["b"] = _rms(layer.b)
    if layer.C is not None:
        ones = torch.zeros_like(layer.C)
        ones[..., 0] = 1.0
        distances["C"] = _rms(layer.C - ones)
    return distances


def _rms(pairs: Tensor) -> float:
    return float(pairs.double().square().sum(-1).mean().sqrt())


def _kronecker_distance(now: Kronecker, start: Kronecker) -> float:
    """||A1 x A2 x ... - B1 x B2 x ...|| / ||B1 x B2 x ...||, without the product and without cancellation.

    The difference telescopes into terms D_i = B1 x .. x (A_i - B_i) x .. x A_d, whose inner products factor over axes.
    """
    grams = [_gram(a, b) for a, b in zip(now, start, strict=True)]
    axes = range(len(grams))
    total = sum(
        math.prod((grams[axis][_side(axis, i)][_side(axis, j)] for axis in axes), start=complex(1)).real
        for i, j in itertools.product(axes, axes)
    )
    norm = math.prod(gram[2][2].real for gram in grams)
    return math.sqrt(max(total, 0.0) / norm)


def _side(axis: int, term: int) -> int:
    """Which matrix stands at `axis` in a term: 0 = A (now), 1 = A - B, 2 = B (start)."""
    return 1 if axis == term else (2 if axis < term else 0)


def _gram(now: KMatrix, start: KMatrix) -> list[list[complex]]:
    """Frobenius inner products among A, A - B and B, columns a few hundred at a time."""
    n, device = now.n, now.factors.device
    gram = torch.zeros(3, 3, dtype=torch.complex128, device=device)
    for first in range(0, n, _COLUMNS):
        count = min(_COLUMNS, n - first)
        a, b = _columns(now, first, count), _columns(start, first, count).to(device)
        sides = torch.stack([a, a - b, b]).flatten(1)
        gram += sides.conj() @ sides.T
    table: list[list[complex]] = gram.tolist()
    return table


def _columns(matrix: KMatrix, first: int, count: int) -> Tensor:
    """Columns first .. first + count - 1 of a K-matrix, as rows: (count, n) complex128."""
    unit = torch.zeros(count, matrix.n, dtype=as_complex(matrix.factors).dtype, device=matrix.factors.device)
    unit[:, first : first + count].fill_diagonal_(1.0)
    columns: Tensor = matrix(unit)
    return columns.to(torch.complex128)
