"""Which layers of a model a swap is about: the convolutions there are, which can be replaced, which are asked for.

One rule for names: a string is a glob on the full dotted name (`fnmatch.fnmatchcase`, so `*` also crosses dots), an
`re.Pattern` must match the full name, a type takes its instances; a sequence takes what any of its members takes. A
layer with several names is taken by any of them.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from xdnas.names import near
from xdnas.report import SwapError, quoted
from xdnas.xd import CONVOLUTIONS, XD

Pattern = str | re.Pattern[str] | type
Patterns = Pattern | Sequence[Pattern] | None
Where = Callable[[str, nn.Module], bool]
_TENSORS = ("weight", "bias")
_HARMLESS = {"__init__", "extra_repr", "reset_parameters", "__repr__", "__annotate__", "__annotate_func__"}


@dataclass
class Found:
    """A convolution-like layer: all its names, why it cannot be swapped ('' when it can), and whether it is chosen."""

    module: nn.Module
    names: tuple[str, ...]
    reason: str

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]


def find(model: nn.Module) -> list[Found]:
    """Every convolution, transposed convolution and XD layer of a model, each once, in the order of its modules."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (_ConvNd, XD)):
            names.setdefault(module, []).append(name)
    return [Found(module, tuple(own), obstacle(module)) for module, own in names.items()]


def obstacle(module: nn.Module) -> str:
    """Why a layer cannot become an XD layer, in words; '' when it can."""
    if isinstance(module, XD):
        return "is an XD layer already"
    if not isinstance(module, CONVOLUTIONS):
        return f"{type(module).__name__} is not supported; supported: Conv1d, Conv2d, Conv3d"
    for check in (_computed_weight, _own_code, _extra_state, _unfit_numbers):
        reason = check(module)
        if reason:
            return reason
    return ""


def _own_code(module: nn.Module) -> str:
    """A subclass, or an instance, that does something else than the base class."""
    base = next(kind for kind in CONVOLUTIONS if isinstance(module, kind))
    patched = [name for name in vars(module) if callable(getattr(base, name, None))]
    if patched:
        return f"has a {patched[0]} of its own, set on the instance"
    classes = type(module).__mro__[: type(module).__mro__.index(base)]
    own = {name for kind in classes for name, value in vars(kind).items() if callable(value) or name in _TENSORS}
    changed = sorted(own - _HARMLESS)
    return f"its class {type(module).__name__} has a {changed[0]} of its own" if changed else ""


def _computed_weight(module: nn.Module) -> str:
    """Weight norm, spectral norm, pruning, parametrizations: the weight is computed from other parameters."""
    if "parametrizations" in module._modules:
        return "is parametrized; swap after torch.nn.utils.parametrize.remove_parametrizations"
    for hook in module._forward_pre_hooks.values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            kind = type(hook).__name__
            return f"its weight is computed by {kind} before every call; remove that first (torch.nn.utils)"
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters(recurse=False)):
        return "is lazy: its sizes are not known before the model has run once"
    return "" if module._parameters.get("weight") is not None else "its weight is not a parameter of the layer"


def _extra_state(module: nn.Module) -> str:
    extra = [*(set(module._parameters) - set(_TENSORS)), *module._buffers, *module._modules]
    if "bias" not in module._parameters:
        return "its bias is not a parameter of the layer"
    return f"holds state that a convolution does not have: {quoted(sorted(extra))}" if extra else ""


def _unfit_numbers(module: nn.Module) -> str:
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            return f"its {name} is {parameter.dtype}; XD layers hold real floating-point numbers"
        if type(parameter.data) is not Tensor:
            return f"its {name} is a {type(parameter.data).__name__} (sharded or quantized); swap before that"
    return ""


def choose(model: nn.Module, found: list[Found], include: Patterns, exclude: Patterns, where: Where | None) -> None:
    """Give every layer that is not asked for its reason; the others keep theirs ('' = will be swapped).

    Raises:
        SwapError: for a pattern that matches nothing, or a layer named exactly that cannot be swapped.
    """
    wanted, unwanted = _sequence(include, "include"), _sequence(exclude, "exclude")
    if include is not None and not wanted:
        raise SwapError("include is empty, so nothing would be swapped; leave it out to take every convolution")
    for argument, patterns in (("include", wanted), ("exclude", unwanted)):
        for pattern in patterns:
            _check_match(model, found, pattern, argument)
    for layer in found:
        if any(_matches(pattern, layer) for pattern in unwanted):
            layer.reason = f"excluded by {_shown(next(p for p in unwanted if _matches(p, layer)))}"
        elif layer.reason and any(_names_exactly(pattern, layer) for pattern in wanted):
            raise SwapError(f"layer {layer.name!r} ({type(layer.module).__name__}) cannot be swapped: {layer.reason}")
        elif wanted and not any(_matches(pattern, layer) for pattern in wanted):
            layer.reason = layer.reason or "not included"
        elif not layer.reason and where is not None and not where(layer.name, layer.module):
            layer.reason = "left out by where"


def named_exactly(layer: Found, include: Patterns) -> bool:
    """Whether the caller asked for this very layer, by one of its names."""
    return any(_names_exactly(pattern, layer) for pattern in _sequence(include, "include"))


def _sequence(patterns: Patterns, argument: str) -> list[Pattern]:
    if patterns is None:
        return []
    single = isinstance(patterns, (str, re.Pattern, type)) or not isinstance(patterns, Iterable)
    members: list[Any] = [patterns] if single else list(patterns)  # type: ignore[arg-type]
    for member in members:
        if not isinstance(member, (str, re.Pattern, type)):
            allowed = "a glob, a compiled regular expression, a type or a sequence of these"
            raise TypeError(f"{argument} takes {allowed}, got {member!r}")
    return members


def _names_exactly(pattern: Pattern, layer: Found) -> bool:
    return isinstance(pattern, str) and pattern in layer.names


def _matches(pattern: Pattern, layer: Found) -> bool:
    return any(_takes(pattern, name, layer.module) for name in layer.names)


def _takes(pattern: Pattern, name: str, module: nn.Module) -> bool:
    if isinstance(pattern, type):
        return isinstance(module, pattern)
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    # a name with brackets in it is no glob
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _shown(pattern: Pattern) -> str:
    return pattern.__name__ if isinstance(pattern, type) else repr(getattr(pattern, "pattern", pattern))


def _check_match(model: nn.Module, found: list[Found], pattern: Pattern, argument: str) -> None:
    if any(_matches(pattern, layer) for layer in found):
        return
    taken = {n: m for n, m in model.named_modules(remove_duplicate=False) if n and _takes(pattern, n, m)}
    holders = [name for name in taken if any(own.startswith(f"{name}.") for layer in found for own in layer.names)]
    if argument == "exclude" and taken and not holders:
        return
    text = f"{argument} {_shown(pattern)} matches no convolution"
    if holders:
        text += f", but {quoted(holders)} holds some: write {holders[0] + '.*'!r}"
    elif taken:
        name, module = next(iter(taken.items()))
        text += f"; {name!r} is a {type(module).__name__}, supported are Conv1d, Conv2d, Conv3d"
    elif isinstance(pattern, str):
        known = [name for layer in found for name in layer.names]
        every = [name for name, _ in model.named_modules() if name]
        text += near(pattern, known) or near(pattern, every)
    raise SwapError(f"{text}. Convolutions in this model: {quoted(layer.name for layer in found)}")
