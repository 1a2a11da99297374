"""Convolutions put back where XD layers are."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from xdnas.params import distance_from_start, xd_layers
from xdnas.report import Layer, Report, SwapError
from xdnas.sample import allowance, untouched
from xdnas.swap import HOOKS, MODULE_ATTRIBUTES, Original, exchange
from xdnas.xd import CONVOLUTIONS, XD

_CONV_ATTRIBUTES = frozenset(vars(nn.Conv2d(1, 1, 1, device="meta")))


def restore(model: nn.Module, *, tolerance: float = 1e-5) -> Report:
    """Put convolutions back in place of all XD layers, in place: same classes, Parameter objects, hooks, flags.

    Exact when K, L, M, b and C are untouched. Otherwise a layer is put back only if, as an operator, it is within
    `tolerance` of the convolution with its weight and bias (float16: 0.008, bfloat16: 0.06): the relative
    L2 difference of the two on four Gaussian inputs, bias left out, which estimates the relative Frobenius distance.

    Works on copies and loaded models too. An XD layer that no swap made becomes the plain nn.Conv1d/2d/3d.

    Raises:
        SwapError: when there is no XD layer or one has moved too far, with all such layers and their distances; the
            model is as before.
    """
    layers = xd_layers(model)
    if not layers:
        raise SwapError("the model has no XD layer to restore")
    if "" in layers:
        raise SwapError(
            "the model itself is an XD layer and cannot be replaced in place; wrap it: nn.Sequential(model)"
        )
    convolutions = {name: _convolution(name, xd) for name, xd in layers.items()}
    distances = {name: operator_distance(xd, convolutions[name]) for name, xd in layers.items()}
    _check_distances(model, layers, distances, tolerance)
    exchange(model, {xd: convolutions[name] for name, xd in layers.items()})
    rows = (_restored(model, name, xd, convolutions[name], distances[name]) for name, xd in layers.items())
    return Report(
        "restored", tuple(rows), tolerance, max((d for d in distances.values() if d is not None), default=None)
    )


def _convolution(name: str, xd: XD) -> nn.Module:
    """The convolution that an XD layer was, holding its Parameter objects; the XD layer stays as it is."""
    if set(xd._parameters) - {"b", "C"} != {"weight", "bias"}:
        raise SwapError(f"layer {name!r}: its weight or bias is parametrized or pruned; remove that before restore")
    original = getattr(xd, "original", None)
    if not isinstance(original, Original):
        original = _plain(xd)
    conv = original.kind.__new__(original.kind)
    vars(conv).update(vars(nn.Module()))
    # attributes of the user's own may have been set anew meanwhile
    live = {k: v for k, v in vars(xd).items() if k in original.attributes and k not in _CONV_ATTRIBUTES}
    vars(conv).update({**original.attributes, **live})
    vars(conv).update({hook: vars(xd)[hook] for hook in HOOKS})
    conv.training = xd.training
    conv._parameters.update({key: xd._parameters[key] for key in ("weight", "bias")})
    return conv


def _plain(xd: XD) -> Original:
    kind: Callable[..., nn.Module] = CONVOLUTIONS[len(xd.n) - 1]
    options = {name: getattr(xd, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
    conv = kind(xd.in_channels, xd.out_channels, xd.kernel_size, **options, device="meta")
    return Original(type(conv), {name: value for name, value in vars(conv).items() if name not in MODULE_ATTRIBUTES})


@torch.no_grad()
def operator_distance(xd: XD, conv: nn.Module) -> float | None:
    """||xd - conv|| / ||conv|| as linear operators, estimated on four Gaussian inputs of a fixed seed; None on meta."""
    if xd.weight.is_meta:
        return None
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, xd.in_channels, *xd.input_size, generator=generator)
    with untouched(xd):
        x = noise.to(xd.weight)
        now, then = xd.forward(x).double(), conv.forward(x).double()
        size = then if xd.bias is None else then - xd.bias.double().view(-1, *(1,) * len(xd.n))
    difference = float((now - then).norm())
    return difference / float(size.norm()) if float(size.norm()) > 0 else (0.0 if difference == 0 else float("inf"))


def _check_distances(
    model: nn.Module, layers: Mapping[str, XD], distances: Mapping[str, float | None], tolerance: float
) -> None:
    far = {
        name: d
        for name, d in distances.items()
        if d is not None and not d <= allowance(tolerance, layers[name].weight.dtype)
    }
    if not far:
        return
    parts = distance_from_start(model)
    lines = [
        f"  {name!r}: {d:.1e} as an operator; " + ", ".join(f"{k} {v:.1e}" for k, v in parts[name].items())
        for name, d in far.items()
    ]
    raise SwapError(
        f"{len(far)} of {len(layers)} XD layers have been trained away from their convolution by more than "
        f"{tolerance:g}, so no convolution is the same:\n" + "\n".join(lines)
    )


def _restored(model: nn.Module, name: str, xd: XD, conv: nn.Module, distance: float | None) -> Layer:
    names = tuple(n for n, module in model.named_modules(remove_duplicate=False) if module is conv)
    return Layer(
        name=name,
        kind=type(conv).__name__,
        swapped=False,
        names=names,
        kernel_size=xd.kernel_size,
        input_size=xd.input_size,
        output_size=xd.output_size,
        error=distance,
    )
