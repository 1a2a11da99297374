"""What a swap would do: run the sample once, look at every convolution, build what would stand in its place."""

import inspect
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from xdnas.causal import hop
from xdnas.choose import Found, Patterns, Where, choose, find, named_exactly
from xdnas.cost import multiply_adds
from xdnas.names import near
from xdnas.report import Layer, Report, SwapError, by, quoted
from xdnas.sample import run, same_random_state, untouched
from xdnas.xd import XD


@dataclass
class Prepared:
    """What a swap needs: the layers, their XD layers, how often the sample calls each, and the output before."""

    found: list[Found]
    layers: dict[str, Layer]
    replacements: dict[str, XD]
    calls: dict[str, int]
    output: object


@dataclass
class _Calls:
    """How the sample called a layer: input shapes, how often, and the number of samples in all calls."""

    sizes: dict[tuple[int, ...], None] = field(default_factory=dict)
    number: int = 0
    samples: int = 0
    unbatched: bool = False


def plan(
    model: nn.Module,
    *example_inputs: Any,
    include: Patterns = None,
    exclude: Patterns = None,
    where: Where | None = None,
    tolerance: float = 1e-4,
    **options: Any,
) -> Report:
    """What `swap` with the same arguments would do. Touches nothing.

    See `swap` for the arguments, the rule for names and the errors. `Layer.swapped` tells what would be swapped. Unlike
    a swap, a plan may come out empty, with the reasons.
    """
    prepared = prepare(model, example_inputs, include, exclude, where, options)
    return Report("planned", tuple(prepared.layers.values()), tolerance)


def prepare(
    model: nn.Module,
    inputs: tuple[Any, ...],
    include: Patterns,
    exclude: Patterns,
    where: Where | None,
    options: Mapping[str, Any],
) -> Prepared:
    """Check everything and build the XD layers, leaving the model as it is.

    Raises:
        SwapError: whatever stands in the way of the swap.
    """
    _check_arguments(model, inputs, options)
    found = find(model)
    if not found:
        kinds = sorted({type(module).__name__ for module in model.modules()})
        raise SwapError(f"the model has no convolution, only {', '.join(kinds)}; supported: Conv1d, Conv2d, Conv3d")
    choose(model, found, include, exclude, where)
    calls, output = _observe(model, inputs, found)
    for layer in found:
        if not layer.reason:
            layer.reason = _unfit_calls(calls[layer.name]) or _unfit_start(layer, options)
            if layer.reason and named_exactly(layer, include):
                raise SwapError(f"layer {layer.name!r} cannot be swapped: {layer.reason}")
    # parameters made in inference mode could never be trained
    with same_random_state(model, inputs), torch.inference_mode(False):
        replacements = {f.name: _replacement(f, calls[f.name], options) for f in found if not f.reason}
    layers = {f.name: _row(f, calls.get(f.name), replacements.get(f.name)) for f in found}
    return Prepared(found, layers, replacements, {name: calls[name].number for name in replacements}, output)


def _check_arguments(model: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"swap takes a torch.nn.Module, got {type(model).__name__}")
    if not inputs:
        raise SwapError("give a sample input behind the model: XD layers need to know the sizes that they see")
    known = [p.name for p in inspect.signature(XD.from_conv).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise SwapError(f"unknown option {name!r}{near(name, known)}; XD layers know {', '.join(known)}")
    lazy = [name for name, module in model.named_modules() if _is_lazy(module)]
    if lazy:
        raise SwapError(f"layers {quoted(lazy)} are lazy; run the model once, so that they get their sizes")
    for name, module in model.named_modules():
        wrapper = _wrapper(module)
        if wrapper:
            raise SwapError(f"{repr(name) if name else 'the model'} is {wrapper}; swap first and do that afterwards")


def _is_lazy(module: nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(torch.nn.parameter.is_lazy(tensor) for tensor in own if tensor is not None)


def _wrapper(module: nn.Module) -> str:
    """What has looked at the parameters or the code of a module already and would not see a swap."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return "wrapped for distributed training"
    if isinstance(module, torch.jit.ScriptModule):
        return "compiled by torch.jit"
    compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
    return "compiled" if compiled else ""


def _observe(model: nn.Module, inputs: tuple[Any, ...], found: list[Found]) -> tuple[dict[str, _Calls], object]:
    """One pass in evaluation mode; how every layer that may be swapped was called, and the output."""
    calls = {layer.name: _Calls() for layer in found if not layer.reason}
    with untouched(model, inputs), ExitStack() as hooks:
        for layer in found:
            if layer.name in calls:
                hook = _recorder(calls[layer.name])
                hooks.callback(layer.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        try:
            return calls, run(model, inputs)
        except Exception as error:
            raise SwapError(f"the model does not run on the sample input: {type(error).__name__}: {error}") from error


def _recorder(calls: _Calls) -> Any:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        axes = len(module.kernel_size)  # type: ignore[arg-type]
        calls.unbatched |= x.dim() == axes + 1
        calls.sizes[tuple(x.shape[-axes:])] = None
        calls.number += 1
        calls.samples += len(x)

    return record


def _unfit_calls(calls: _Calls) -> str:
    if not calls.sizes:
        return "the sample input never calls it"
    if len(calls.sizes) > 1:
        return f"is called at different sizes: {', '.join(by(size) for size in calls.sizes)}"
    return "is called without a batch axis" if calls.unbatched else ""


def _unfit_start(layer: Found, options: Mapping[str, Any]) -> str:
    kernel: tuple[int, ...] = layer.module.kernel_size  # type: ignore[assignment]
    if options.get("causal") == "triangular" and math.prod(kernel) > 1:
        return f"a triangular layer starts at kernel size 1, not at {by(kernel)}"
    return ""


def _short_view(xd: XD) -> str:
    """What a causal layer that looks far back no longer is on inputs that are longer than the sample."""
    if not xd.causal:
        return ""
    (steps,), reach = xd.input_size, (xd.kernel_size[0] - 1) * xd.dilation[0]
    surely = steps - hop(steps)
    if reach <= surely:
        return ""
    return (
        f"looks back {reach} steps, of which inputs of more than {steps} steps show it {surely}: it is the "
        f"convolution up to {steps} steps alone; give a sample of {2 * reach} steps or more"
    )


def nothing_to_swap(found: list[Found]) -> str:
    """Why no layer of a model is swapped."""
    reasons = "; ".join(f"{layer.name!r}: {layer.reason}" for layer in found[:12])
    return f"no convolution is left to swap ({len(found)} found): {reasons}"


def _replacement(layer: Found, calls: _Calls, options: Mapping[str, Any]) -> XD:
    assert isinstance(layer.module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    try:
        return XD.from_conv(layer.module, next(iter(calls.sizes)), **options)
    except (ValueError, TypeError) as error:
        raise SwapError(f"layer {layer.name!r}: {error}") from error


def _row(layer: Found, calls: _Calls | None, xd: XD | None) -> Layer:
    module = layer.module
    row = {"name": layer.name, "kind": type(module).__name__, "names": layer.names, "reason": layer.reason}
    kernel = tuple(getattr(module, "kernel_size", ()))
    if xd is None or calls is None:
        return Layer(**row, swapped=False, kernel_size=kernel)  # type: ignore[arg-type]
    frozen = not any(p.requires_grad for p in module.parameters())
    if frozen:
        row["reason"] = "frozen, so its architecture parameters are frozen too"
    row["reason"] = "; ".join(filter(None, (str(row["reason"]), _short_view(xd))))
    own = sum(p.numel() for p in xd.parameters()) - sum(p.numel() for p in module.parameters())
    positions = calls.samples * math.prod(xd.output_size)
    return Layer(
        **row,  # type: ignore[arg-type]
        swapped=True,
        kernel_size=kernel,
        input_size=xd.input_size,
        output_size=xd.output_size,
        n=xd.n,
        added=own,
        multiply_adds=positions * xd.weight.numel(),
        xd_multiply_adds=multiply_adds(xd, calls.samples),
    )
