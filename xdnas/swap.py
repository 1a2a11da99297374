"""Convolutions of a model replaced by XD layers that start as these convolutions."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from xdnas.choose import Patterns, Where
from xdnas.params import ARCHITECTURE
from xdnas.plan import Prepared, nothing_to_swap, prepare
from xdnas.report import Report, SwapError
from xdnas.sample import allowance, output_error, relative_error, run, tensors_of, untouched
from xdnas.xd import XD

Measured = tuple[float | None, torch.dtype]
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
HOOKS = tuple(name for name in vars(nn.Module()) if "hook" in name)


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
        options: `depth`, `arch_bias`, `gates`, `compact`, `causal`, `size` of `XD.from_conv`, for every layer. With
            `causal="triangular"` a layer starts at a convolution of kernel size 1 alone; larger ones are refused.

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
    if not prepared.replacements:
        raise SwapError(nothing_to_swap(prepared.found))
    pairs = {f.name: (f.module, prepared.replacements[f.name]) for f in prepared.found if not f.reason}
    for layer, xd in pairs.values():
        _dress(layer, xd)
    places: dict[nn.Module, nn.Module] = dict(pairs.values())
    exchange(model, places)
    try:
        return _checked(model, example_inputs, prepared, pairs, tolerance)
    except BaseException:
        exchange(model, {xd: layer for layer, xd in places.items()})
        raise


def _dress(layer: nn.Module, xd: XD) -> None:
    """Give the XD layer what the convolution has beside its parameters; the convolution stays as it is."""
    attributes = {name: value for name, value in vars(layer).items() if name not in MODULE_ATTRIBUTES}
    vars(xd).update({name: value for name, value in attributes.items() if not hasattr(xd, name)})
    vars(xd)["original"] = Original(type(layer), attributes)
    vars(xd).update({name: vars(layer)[name] for name in HOOKS})
    xd.train(layer.training)
    if not any(parameter.requires_grad for parameter in layer.parameters()):
        for name, parameter in xd.named_parameters():
            if name.split(".")[0] in ARCHITECTURE:
                parameter.requires_grad_(False)


def exchange(model: nn.Module, layers: Mapping[nn.Module, nn.Module]) -> None:
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
    _check_called(errors, prepared.calls)
    for name, calls in errors.items():
        for value, dtype in calls:
            _check_error(f"layer {name!r}", value, allowance(tolerance, dtype))
    whole = output_error(output, prepared.output)
    dtypes = {t.dtype for t in tensors_of(output)} | {dtype for calls in errors.values() for _, dtype in calls}
    _check_error("the whole model", whole, max(allowance(tolerance, dtype, len(pairs)) for dtype in dtypes))
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


def _check_called(errors: Mapping[str, list[Measured]], calls: Mapping[str, int]) -> None:
    for name, found in errors.items():
        if len(found) != calls[name]:
            raise SwapError(
                f"the model still calls the old layer {name!r} through a reference that is no submodule (a list, a "
                f"closure): {calls[name]} calls before, {len(found)} of the new one; exclude it or use nn.ModuleList; "
                "undone"
            )


def _check_error(where: str, error: float | None, limit: float) -> None:
    if error is not None and not error <= limit:
        raise SwapError(f"{where} differs by {error:.1e} relative, tolerance {limit:.1e}; the swap is undone")
