"""A copy of a model for deployment: every matrix of its XD layers computed once, for parameters that never change."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from xdnas.causal import apply_lower, windows
from xdnas.mixing import diagonals
from xdnas.operation import arrays, taps
from xdnas.params import xd_layers
from xdnas.pipeline import analyse, mix_fixed, synthesise
from xdnas.precision import full_precision
from xdnas.swap import HOOKS, exchange
from xdnas.xd import XD, check_input


def for_inference(model: nn.Module) -> nn.Module:
    """A copy of `model` in evaluation mode whose XD layers hold plain buffers instead of parameters.

    It gives the outputs that the model gives now, up to rounding, and is not changed by what happens to the model
    later. Gradients flow to inputs, and nothing in it asks for them. Layers of half precision keep their matrices in
    float32, until you convert the copy itself. It cannot be swapped, restored or trained; keep the model for that.

    Raises:
        TypeError: model is no torch.nn.Module.
        ValueError: the model has no XD layer, or a hook makes the weight of one.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"for_inference takes a torch.nn.Module, got {type(model).__name__}")
    layers = xd_layers(model)
    if not layers:
        raise ValueError(f"for_inference: the {type(model).__name__} has no XD layer; it can be used as it is")
    for name, xd in layers.items():
        if not isinstance(xd.weight, nn.Parameter) and not parametrize.is_parametrized(xd, "weight"):
            raise ValueError(f"for_inference: the weight of layer {name!r} is made by a hook; remove that first")
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    fixed: dict[nn.Module, nn.Module] = {xd: _fixed(xd) for xd in xd_layers(copied).values()}
    if isinstance(copied, XD):
        return fixed[copied]
    exchange(copied, fixed)
    return copied


class Fixed(nn.Module):
    """What an XD layer computes at one moment; input and output as the layer's."""

    bias: Tensor | None
    kind: Tensor

    def __init__(self, xd: XD) -> None:
        super().__init__()
        self.in_channels, self.input_size, self.groups = xd.in_channels, xd.input_size, xd.groups
        self.geometry, self.causal, self.description = xd.geometry, bool(xd.causal), xd.extra_repr()
        self.register_buffer("bias", None if xd.bias is None else xd.bias.clone().view(-1, *(1,) * len(xd.n)))
        self.register_buffer("kind", xd.weight.new_empty(0), persistent=False)  # its dtype is the layer's
        vars(self).update({name: vars(xd)[name] for name in HOOKS})
        self.eval()

    def forward(self, input: Tensor) -> Tensor:
        """As `XD.forward`."""
        dtype = next(buffer.dtype for name, buffer in self.named_buffers() if name not in ("bias", "kind"))
        check_input(input, self.in_channels, self.input_size, self.kind.dtype, causal=self.causal)
        with full_precision(input):
            y = self.operate(input.to(dtype))
            return (y if self.bias is None else y + self.bias.to(dtype)).to(input.dtype)

    def operate(self, x: Tensor) -> Tensor:
        """The operation without its bias."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """What the layer was."""
        return self.description


class FixedByFrequencies(Fixed):
    """The matrices of M and K, and the diagonals of all pairs of channels."""

    diagonals: Tensor

    def __init__(self, xd: XD) -> None:
        super().__init__(xd)
        op = xd.operation()
        own = arrays(op, [axis.size + axis.before + axis.after for axis in op.geometry.axes])
        self.before, self.behind = own.before, own.behind
        self.register_buffer("diagonals", diagonals(own.side, own.taps))
        self.first = [f"first_{i}" for i in range(len(own.first))]
        self.second = [f"second_{i}" for i in range(len(own.second))]
        for name, tensor in zip(self.first + self.second, own.first + own.second, strict=True):
            self.register_buffer(name, tensor.contiguous())

    def operate(self, x: Tensor) -> Tensor:
        """By frequencies."""
        x = self.geometry.pad(x)
        signal = analyse(self.before, self.diagonals.shape[0], x, self._matrices(self.first))
        mixed = mix_fixed(signal, self.diagonals, self.groups)
        return synthesise(self.behind, self.geometry.output_size, mixed, self._matrices(self.second))

    def _matrices(self, names: Sequence[str]) -> list[Tensor]:
        return [self.get_buffer(name) for name in names]


class FixedByTaps(Fixed):
    """The lower triangles of all taps, and their weights."""

    lower: Tensor
    taps: Tensor

    def __init__(self, xd: XD) -> None:
        super().__init__(xd)
        lower, weights = taps(xd.operation()).lower(xd.output_size[0], xd.input_size[0])
        self.register_buffer("lower", lower.contiguous())
        self.register_buffer("taps", weights.contiguous())

    def operate(self, x: Tensor) -> Tensor:
        """By taps."""
        (history,), tail = self.input_size, self.lower.shape[0] - self.lower.shape[2]

        def window(x: Tensor) -> Tensor:
            steps = x.shape[2]
            return apply_lower(x, self.lower[: steps + tail, :, :steps], self.taps, self.groups)

        return windows(x, history, tail, window)


@torch.no_grad()
def _fixed(xd: XD) -> Fixed:
    with full_precision(xd.weight):
        return FixedByTaps(xd) if xd.causal else FixedByFrequencies(xd)
