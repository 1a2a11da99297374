"""Convolutions of a model replaced by XD layers that start as these convolutions, and put back."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from xdnas.choose import CONVOLUTIONS, Patterns, Where
from xdnas.params import ARCHITECTURE, distance_from_start, xd_layers
from xdnas.plan import Prepared, prepare
from xdnas.report import Layer, Report, SwapError
from xdnas.sample import allowance, output_error, relative_error, run, tensors_of, untouched
from xdnas.xd import XD

Measured = tuple[float | None, torch.dtype]
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_CONV_ATTRIBUTES = frozenset(vars(nn.Conv2d(1, 1, 1, device="meta")))
_HOOKS = tuple(name for name in vars(nn.Module()) if "hook" in name)


@dataclass(frozen=True)
class Original:
    """What an XD layer was before the swap: its class and its attributes that are not tensors, modules or hooks.

    It stands on the XD layer as `original`, so that it goes wherever the layer goes: deepcopy, pickle, torch.save.
    """

    kind: type[nn.Module]
    attributes: Mapping[str, Any]


def swap(
    model: nn.Module,
    *example_inputs: Any,
    include: Patterns = None,
    exclude: Patterns = None,
    where: Where | None = None,
    tolerance: float = 1e-4,
    **options: Any,
) -> Report:
    """Replace convolutions of `model`, in place, by XD layers that start as exactly these convolutions.

    Everything is checked first, then all chosen layers are replaced or none. The model keeps its class, hooks,
    training flags, dtypes, devices, shared layers and Parameter objects (an optimizer made before still trains them);
    its state_dict keys stay, with K, L, M, b and C beside them. The architecture parameters of a layer all of whose
    parameters are frozen are frozen too. The sample runs twice, in evaluation mode, on copies of the inputs, and
    leaves no trace in buffers, random states or attributes.

    Args:
        model: any network; its convolutions are `nn.Conv1d/2d/3d` and subclasses that only add to the constructor.
        example_inputs: what the model is called with; gives the sizes that XD layers are made for.
        include, exclude: a string is a glob on the full dotted name (`*` also crosses dots; a plain name is itself), an
            `re.Pattern` must match the full name, a type takes its instances; or a sequence of these. A shared layer
            is taken by any of its names. Default: every convolution.
        where: `where(name, module) -> bool`, asked for every layer that include and exclude leave.
        tolerance: largest difference over a layer's whole output, and over the model's, relative to the largest
            value there (for a layer not less than a hundredth of what its kernel could give on such an input). In
            float16 and bfloat16, whose K, L and M are rounded, 0.008 and 0.06 are allowed (for the model: per layer).
        options: `depth`, `arch_bias`, `gates`, `size` of `XD.from_conv`.

    Returns:
        A row for every convolution with the reason if it was left, and the error of layers and model.

    Raises:
        SwapError: when anything stands in the way, a pattern matches nothing, or an error is above tolerance; the
            model is as before.
    """
    prepared = prepare(model, example_inputs, include, exclude, where, options)
    if "" in prepared.replacements:
        raise SwapError(
            f"the model itself is a {type(model).__name__} and cannot be replaced in place; "
            "wrap it, e.g. torch.nn.Sequential(model), or use XD.from_conv"
        )
    pairs = {f.name: (f.module, prepared.replacements[f.name]) for f in prepared.found if not f.reason}
    for layer, xd in pairs.values():
        _dress(layer, xd)
    exchange: dict[nn.Module, nn.Module] = dict(pairs.values())
    _exchange(model, exchange)
    try:
        return _checked(model, example_inputs, prepared, pairs, tolerance)
    except BaseException:
        _exchange(model, {xd: layer for layer, xd in exchange.items()})
        raise


def _dress(layer: nn.Module, xd: XD) -> None:
    """Give the XD layer what the convolution has beside its parameters; the convolution stays as it is."""
    attributes = {name: value for name, value in vars(layer).items() if name not in _MODULE_ATTRIBUTES}
    vars(xd).update({name: value for name, value in attributes.items() if not hasattr(xd, name)})
    vars(xd)["original"] = Original(type(layer), attributes)
    vars(xd).update({name: vars(layer)[name] for name in _HOOKS})
    xd.train(layer.training)
    if not any(parameter.requires_grad for parameter in layer.parameters()):
        for name, parameter in xd.named_parameters():
            if name.split(".")[0] in ARCHITECTURE:
                parameter.requires_grad_(False)


def _exchange(model: nn.Module, layers: Mapping[nn.Module, nn.Module]) -> None:
    """Put other modules in the places of some, everywhere in the model; the order of all names stays."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in layers:
                parent._modules[name] = layers[child]
    for new in layers.values():
        for hook in new._load_state_dict_pre_hooks.values():
            # these hooks hold the module that they were registered on
            if getattr(hook, "with_module", False):
                hook.module = weakref.ref(new)  # type: ignore[attr-defined]


def _checked(
    model: nn.Module,
    inputs: tuple[Any, ...],
    prepared: Prepared,
    pairs: Mapping[str, tuple[nn.Module, XD]],
    tolerance: float,
) -> Report:
    errors: dict[str, list[Measured]] = {name: [] for name in pairs}
    with untouched(model, inputs), ExitStack() as hooks:
        for name, (layer, xd) in pairs.items():
            hooks.callback(xd.register_forward_hook(_comparison(layer, xd, errors[name]), with_kwargs=True).remove)
        try:
            output = run(model, inputs)
        except Exception as error:
            raise SwapError(f"swapped, the model does not run: {type(error).__name__}: {error}; undone") from error
    _check_called(errors)
    for name, calls in errors.items():
        for value, dtype in calls:
            _check_error(f"layer {name!r}", value, allowance(tolerance, dtype))
    whole = output_error(output, prepared.output)
    dtypes = [t.dtype for t in tensors_of(output) if t.is_floating_point() or t.is_complex()]
    limits = [allowance(tolerance, dtype, len(pairs)) for dtype in dtypes]
    _check_error("the whole model", whole, max(limits, default=tolerance))
    worst = {name: max((e for e, _ in calls if e is not None), default=None) for name, calls in errors.items()}
    rows = (replace(row, error=worst.get(name)) for name, row in prepared.layers.items())
    return Report("swapped", tuple(rows), tolerance, whole)


def _comparison(layer: nn.Module, xd: XD, errors: list[Measured]) -> Callable[..., None]:
    def compare(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        # the two share their hooks, so a call of the old layer comes here too
        if called is not xd:
            return
        x = args[0] if args else next(iter(kwargs.values()))
        weight = layer.weight
        assert isinstance(weight, Tensor)
        bound = float(x.abs().max().double() * weight.abs().flatten(1).sum(1).max().double()) if not x.is_meta else 0.0
        then: Tensor = layer.forward(x)
        errors.append((relative_error(xd.forward(x), then, scale=0.01 * bound), then.dtype))

    return compare


def _check_called(errors: Mapping[str, list[Measured]]) -> None:
    for name, found in errors.items():
        if not found:
            raise SwapError(
                f"the model still calls the old layer {name!r} through a reference that is no submodule (a list, a "
                f"closure); exclude it or use nn.ModuleList; undone"
            )


def _check_error(where: str, error: float | None, limit: float) -> None:
    if error is not None and not error <= limit:
        raise SwapError(f"{where} differs by {error:.1e} relative, tolerance {limit:.1e}; the swap is undone")


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
    _exchange(model, {xd: convolutions[name] for name, xd in layers.items()})
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
    vars(conv).update({hook: vars(xd)[hook] for hook in _HOOKS})
    conv.training = xd.training
    conv._parameters.update({key: xd._parameters[key] for key in ("weight", "bias")})
    return conv


def _plain(xd: XD) -> Original:
    kind: Callable[..., nn.Module] = CONVOLUTIONS[len(xd.n) - 1]
    options = {name: getattr(xd, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
    conv = kind(xd.in_channels, xd.out_channels, xd.kernel_size, **options, device="meta")
    return Original(type(conv), {name: value for name, value in vars(conv).items() if name not in _MODULE_ATTRIBUTES})


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
