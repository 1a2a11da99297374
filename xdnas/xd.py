"""The XD-operation (Roberts et al. 2021, Definition 3.2): Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j)."""

from collections.abc import Callable, Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from xdnas import warmstart
from xdnas.dense import dense
from xdnas.geometry import Size, convolution_geometry, is_int, per_axis
from xdnas.kmatrix import as_complex
from xdnas.operation import Operation, by_frequencies, by_taps, taps
from xdnas.precision import autocast, full_precision
from xdnas.spectrum import kept
from xdnas.stepwise import Stepper

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SETTINGS = (
    "stride",
    "padding",
    "dilation",
    "groups",
    "padding_mode",
)  # of a convolution, besides its channels and size
CAUSAL = (False, True, "stack", "triangular")


class XD(nn.Module):
    """An XD-operation on 1, 2 or 3 axes, started at the convolution with the same arguments.

    Input (B, in_channels, *input_size), output (B, out_channels, *output_size), both real. Before any training of
    K, L, M, b or C it is that convolution up to rounding, borders included (`causal="triangular"`: see there).

    Args:
        in_channels, out_channels, stride, padding, dilation, groups, bias, padding_mode: as in torch.nn.Conv1d/2d/3d.
        kernel_size: one int, or one per axis.
        input_size: one int per axis (an int for one axis); inputs of other sizes are refused.
        depth: butterfly matrices per K-matrix, an int for K, L and M alike or one each; None = 1, which holds every
            convolution.
        arch_bias: give it b, one complex number per frequency, started at 0.
        gates: give it C, one complex number per pair of channels, started at 1.
        compact: use half of the spectrum of the first axis, 50 to 63 % of it: less work, a smaller family, with b
            of shape (`spectrum.kept(n)`, *n[1:], 2) in the order of `spectrum.half`.
        causal: on one axis, for convolutions with stride 1 that pad (kernel_size - 1) * dilation zeros. True: masked to
            its lower triangle, so that output t sees no input behind t, whatever K, L, M, b and C. "stack": the same by
            brute force, every prefix an example of its own (the paper's music models). "triangular": K and M lower
            triangular, started at the pointwise product with the last tap (see `warmstart.pointwise`). Inputs may then
            have any length; behind input_size steps the layer works in windows (see `causal.windows`).
        size: transform size per axis: None = the cheapest 2^a 3^b 5^c, "power_of_two", an int or one int per axis.

    Attributes:
        K, L, M, b, C: architecture parameters; Kronecker products of K-matrices, pairs (*n, 2) or None, and pairs
            (out_channels, in_channels / groups, 2) or None. weight, bias: model weights, as in torch.nn.Conv.

    Raises:
        ValueError: for arguments that torch.nn.Conv, the padded sizes, or the compact and causal forms do not allow.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        input_size: Size,
        *,
        stride: Size = 1,
        padding: "str | Size" = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        depth: "int | Sequence[int] | None" = None,
        arch_bias: bool = True,
        gates: bool = True,
        compact: bool = False,
        causal: bool | str = False,
        size: "str | Size | None" = None,
        device: "torch.device | str | None" = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dims = 1 if isinstance(input_size, int) else len(tuple(input_size))
        if not 1 <= dims <= len(CONVOLUTIONS):
            raise ValueError(f"XD: input_size {input_size!r} must be an int or 1 to 3 ints, one per axis")
        _check_channels(in_channels, out_channels, groups)
        self.in_channels, self.out_channels, self.groups = int(in_channels), int(out_channels), int(groups)
        self.input_size = per_axis(input_size, dims, "input_size", 1)
        self.kernel_size = per_axis(kernel_size, dims, "kernel_size", 1)
        self.stride = per_axis(stride, dims, "stride", 1)
        self.dilation = per_axis(dilation, dims, "dilation", 1)
        self.padding = padding if isinstance(padding, str) else per_axis(padding, dims, "padding", 0)
        self.padding_mode = padding_mode
        self.depth = cast("tuple[int, int, int]", per_axis(1 if depth is None else depth, 3, "depth", 1))
        self.geometry = convolution_geometry(
            self.input_size, self.kernel_size, self.stride, self.padding, self.dilation, padding_mode, size
        )
        self.compact, self.causal = compact, causal
        self._check_forms()
        self._start_architecture(arch_bias, gates, device, dtype)
        self._start_weights(bias, device, self.K[0].factors.dtype)

    def _check_forms(self) -> None:
        if not isinstance(self.compact, bool):
            raise ValueError(f"XD: compact {self.compact!r} must be True or False; give one of them")
        if not isinstance(self.causal, (bool, str)) or self.causal not in CAUSAL:
            raise ValueError(
                f"XD: causal {self.causal!r} must be one of {', '.join(map(repr, CAUSAL))}; give one of them"
            )
        if not self.causal:
            return
        if self.compact and self.causal == "triangular":
            raise ValueError(
                "XD: compact=True keeps half of a spectrum, and causal='triangular' starts without one; leave out one"
            )
        if len(self.n) > 1:
            raise ValueError(
                f"XD: causal={self.causal!r} is for one axis, and input_size {self.input_size} has {len(self.n)}; "
                "leave such layers out"
            )
        (kernel,), (dilation,), (axis,) = self.kernel_size, self.dilation, self.geometry.axes
        reach = (kernel - 1) * dilation
        if self.stride != (1,) or self.padding_mode != "zeros" or axis.kernel.start != reach:
            raise ValueError(
                f"XD: causal={self.causal!r} needs stride=1, padding_mode='zeros' and padding=(kernel_size - 1) * "
                f"dilation={reach}; given are stride={self.stride[0]}, padding_mode={self.padding_mode!r}, "
                f"padding={self.padding!r}. Change what differs, the network leaving out the last {reach} outputs of "
                "the layer, or leave the layer as it is"
            )

    def _start_architecture(
        self, bias: bool, gates: bool, device: "torch.device | str | None", dtype: torch.dtype | None
    ) -> None:
        self.K, self.L, self.M = self._named()(self.n, self.depth, device=device, dtype=dtype)
        real = self.K[0].factors.dtype
        spectrum = (kept(self.n) if self.compact else self.n[0], *self.n[1:])
        self.b = nn.Parameter(torch.zeros(*spectrum, 2, device=device, dtype=real)) if bias else None
        one = torch.tensor([1.0, 0.0], device=device, dtype=real)
        self.C = nn.Parameter(one.repeat(*self._pair, 1)) if gates else None

    def _start_weights(self, bias: bool, device: "torch.device | str | None", dtype: torch.dtype) -> None:
        self.weight = nn.Parameter(torch.empty(*self._pair, *self.kernel_size, device=device, dtype=dtype))
        own = nn.Parameter(torch.empty(self.out_channels, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own)
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        if self.bias is not None:
            bound = self.weight[0].numel() ** -0.5
            nn.init.uniform_(self.bias, -bound, bound)

    @property
    def _pair(self) -> tuple[int, int]:
        return self.out_channels, self.in_channels // self.groups

    def _named(self) -> Callable[..., warmstart.Start]:
        return warmstart.pointwise if self.causal == "triangular" else warmstart.convolution

    @property
    def n(self) -> tuple[int, ...]:
        """Transform size of every axis."""
        return self.geometry.n

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output size of every axis."""
        return self.geometry.output_size

    @classmethod
    def from_conv(
        cls,
        conv: "nn.Conv1d | nn.Conv2d | nn.Conv3d",
        input_size: Size,
        *,
        depth: "int | Sequence[int] | None" = None,
        arch_bias: bool = True,
        gates: bool = True,
        compact: bool = False,
        causal: bool | str = False,
        size: "str | Size | None" = None,
    ) -> Self:
        """An operation that equals `conv` on inputs of `input_size` and holds the same weight and bias objects.

        Raises:
            TypeError: if `conv` is not a torch.nn.Conv1d, Conv2d or Conv3d.
            ValueError: as the constructor.
        """
        if not isinstance(conv, CONVOLUTIONS):
            raise TypeError(f"XD: from_conv takes a torch.nn.Conv1d, Conv2d or Conv3d, got {type(conv).__name__}")
        weight = conv.weight
        xd = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            (input_size,) * (weight.dim() - 2) if isinstance(input_size, int) else input_size,
            bias=False,
            **{name: getattr(conv, name) for name in SETTINGS},
            depth=depth,
            arch_bias=arch_bias,
            gates=gates,
            compact=compact,
            causal=causal,
            size=size,
            device=weight.device,
            dtype=weight.dtype,
        )
        xd.register_parameter("weight", cast("nn.Parameter", weight))
        xd.register_parameter("bias", cast("nn.Parameter | None", conv.bias))
        return xd.train(conv.training)

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, *input_size) to (B, out_channels, *output_size), in the dtype of the input.

        A causal layer takes (B, in_channels, T) with any T >= 1 to (B, out_channels, T + padding).

        Raises:
            ValueError: the input has another shape.
            TypeError: it is not real, or has another dtype than the layer outside of torch.autocast.
        """
        check_input(input, self.in_channels, self.input_size, self.weight.dtype, causal=bool(self.causal))
        with full_precision(input):
            return self._operate(input)

    def _operate(self, x: Tensor) -> Tensor:
        op, signal = self.operation(), x.to(as_complex(self.K[0].factors).real.dtype)
        stack = self.causal == "stack"
        y = by_taps(op, signal, brute_force=stack) if self.causal else by_frequencies(op, signal)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view(-1, *(1,) * len(self.n))
        return y.to(x.dtype)

    def operation(self) -> Operation:
        """What the layer consists of now, without its bias."""
        return Operation(self.geometry, self.groups, self.K, self.L, self.M, self.weight, self.b, self.C, self.compact)

    def dense(self) -> Tensor:
        """The operation without its bias as a real matrix (out, *output_size, in, *input_size)."""
        return dense(self.operation(), causal=bool(self.causal))

    def warm_start(self) -> warmstart.Start:
        """K, L and M as they were at the start, in the layer's dtype."""
        return self._named()(self.n, self.depth, dtype=self.K[0].factors.dtype)

    @torch.no_grad()
    def stepper(self) -> Stepper:
        """A causal layer as it is now, without gradients, one step at a time in constant memory; see `Stepper`.

        Raises:
            ValueError: the layer is not causal.
        """
        if not self.causal:
            raise ValueError("XD: only a causal layer goes step by step; make it with causal=True")
        with full_precision(self.weight):
            own = taps(self.operation())
        bias = None if self.bias is None else self.bias.clone()
        return Stepper(own.rows(self.input_size[0]), own.L, own.W, own.M, bias, self.groups)

    def extra_repr(self) -> str:
        """The arguments that tell the operation."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, input_size={self.input_size}, "
            f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}, "
            f"padding_mode={self.padding_mode!r}, depth={self.depth}, n={self.n}"
            + (", compact=True" if self.compact else "")
            + (f", causal={self.causal!r}" if self.causal else "")
        )


def check_input(x: Tensor, channels: int, size: tuple[int, ...], dtype: torch.dtype, *, causal: bool) -> None:
    """Refuse an input that a layer was not made for."""
    fits = x.dim() == len(size) + 2 and x.shape[1] == channels
    if not fits or not (causal or tuple(x.shape[2:]) == size):
        steps = "any number of steps" if causal else ", ".join(map(str, size))
        advice = (
            "K, L and M belong to one input size: swap the model again for another" if fits else "reshape the input"
        )
        raise ValueError(
            f"XD: input {tuple(x.shape)} does not fit; this layer takes (batch, {channels}, {steps}). {advice}"
        )
    if not x.is_floating_point():
        raise TypeError(f"XD: input is {x.dtype} and must be real; convert it, e.g. to {dtype}")
    if not x.shape[2]:
        raise ValueError(f"XD: input {tuple(x.shape)} has no steps; a causal layer takes one or more")
    if x.dtype != dtype and not autocast(x):
        raise TypeError(f"XD: input is {x.dtype} and the layer {dtype}; convert one of them")


def _check_channels(in_channels: int, out_channels: int, groups: int) -> None:
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
        if not is_int(value) or value < 1:
            raise ValueError(f"XD: {name} {value!r} must be a positive int")
    if in_channels % groups or out_channels % groups:
        raise ValueError(f"XD: groups {groups} must divide in_channels {in_channels} and out_channels {out_channels}")
