"""The XD-operation (Roberts et al. 2021, Definition 3.2): Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j).

Shapes in comments: B batch, I inputs, O outputs, G groups, F frequencies (the product of all axes), N, T input and
output positions.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Self, cast

import torch
from torch import Tensor, nn

from xdnas import warmstart
from xdnas.fused import apply, columns, rows
from xdnas.geometry import Axis, Size, convolution_geometry, is_int, per_axis
from xdnas.kmatrix import as_complex
from xdnas.product import product

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# one dense matrix per axis up to this size: with several axes block factors need copies that a matrix does not
DENSE_UP_TO = {1: 64, 2: 128, 3: 128}


class XD(nn.Module):
    """An XD-operation on 1, 2 or 3 axes, started at the convolution with the same arguments.

    Input (B, in_channels, *input_size), output (B, out_channels, *output_size), both real. Before any training of
    K, L, M, b or C it is that convolution up to rounding, borders included.

    Args:
        in_channels, out_channels, stride, padding, dilation, groups, bias, padding_mode: as in torch.nn.Conv1d/2d/3d.
        kernel_size: one int, or one per axis.
        input_size: one int per axis (an int for one axis); inputs of other sizes are refused.
        depth: butterfly matrices per K-matrix, an int for K, L and M alike or one each; None = 1, which holds every
            convolution.
        arch_bias: give it b, one complex number per frequency, started at 0.
        gates: give it C, one complex number per pair of channels, started at 1.
        size: transform size per axis: None = the cheapest 2^a 3^b 5^c, "power_of_two", an int or one int per axis.

    Attributes:
        K, L, M, b, C: architecture parameters; Kronecker products of K-matrices, pairs (*n, 2) or None, and pairs
            (out_channels, in_channels / groups, 2) or None. weight, bias: model weights, as in torch.nn.Conv.

    Raises:
        ValueError: for arguments that torch.nn.Conv or the padded sizes do not allow.
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
        size: "str | Size | None" = None,
        device: "torch.device | str | None" = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dims = 1 if isinstance(input_size, int) else len(tuple(input_size))
        if dims not in DENSE_UP_TO:
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
        start = warmstart.convolution(self.n, self.depth, device=device, dtype=dtype)
        self.K, self.L, self.M = start
        real = self.K[0].factors.dtype
        pair = (self.out_channels, self.in_channels // self.groups)
        self.b = nn.Parameter(torch.zeros(*self.n, 2, device=device, dtype=real)) if arch_bias else None
        one = torch.tensor([1.0, 0.0], device=device, dtype=real)
        self.C = nn.Parameter(one.repeat(*pair, 1)) if gates else None
        self._start_weights(pair, bias, device, real)

    def _start_weights(
        self, pair: tuple[int, int], bias: bool, device: "torch.device | str | None", dtype: torch.dtype
    ) -> None:
        self.weight = nn.Parameter(torch.empty(*pair, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(pair[0], device=device, dtype=dtype)) if bias else None
        )
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        if self.bias is not None:
            bound = self.weight[0].numel() ** -0.5
            nn.init.uniform_(self.bias, -bound, bound)

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
            stride=conv.stride,
            padding=conv.padding,
            dilation=conv.dilation,
            groups=conv.groups,
            bias=False,
            padding_mode=conv.padding_mode,
            depth=depth,
            arch_bias=arch_bias,
            gates=gates,
            size=size,
            device=weight.device,
            dtype=weight.dtype,
        )
        xd.register_parameter("weight", cast("nn.Parameter", weight))
        xd.register_parameter("bias", cast("nn.Parameter | None", conv.bias))
        return xd.train(conv.training)

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_channels, *input_size) to (B, out_channels, *output_size), in the dtype of the input."""
        self._check_input(input)
        if _autocast(input):
            with torch.autocast(input.device.type, enabled=False):
                return self._operate(input)
        return self._operate(input)

    def _operate(self, x: Tensor) -> Tensor:
        values = as_complex(self.K[0].factors)
        signal = self._analyse(x.to(values.real.dtype), values.dtype)
        mixed = _mix_channels(signal, self._diagonals(values.dtype), self.groups)
        y = self._synthesise(mixed)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view(-1, *(1,) * len(self.n))
        return y.to(x.dtype)

    def _check_input(self, x: Tensor) -> None:
        wanted = (self.in_channels, *self.input_size)
        if x.dim() != len(wanted) + 1 or tuple(x.shape[1:]) != wanted:
            raise ValueError(
                f"XD: input {tuple(x.shape)} does not fit; this layer takes (batch, {', '.join(map(str, wanted))}). "
                "K, L and M belong to one input size: swap the layer again for another"
            )
        if x.dtype != self.weight.dtype and not _autocast(x):
            raise TypeError(f"XD: input is {x.dtype} and the layer {self.weight.dtype}; convert one of them")

    def _analyse(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """M x: real (B, I, *N) to (F, B, I)."""
        x = self.geometry.pad(x)
        batch, inputs, *size = x.shape
        # one pass: the copy to frequency-first order makes the numbers complex as well
        y = x.permute(*range(2, x.dim()), 0, 1).to(dtype, memory_format=torch.contiguous_format)
        lead = 1
        for kmatrix, positions in zip(self.M, size, strict=True):
            y = apply(kmatrix.fused(self._dense_up_to), _along(y, lead, positions))
            lead *= kmatrix.n
        return y.reshape(lead, batch, inputs)

    def _diagonals(self, dtype: torch.dtype) -> Tensor:
        """C (L w + b) for every pair of channels: (F, I / G, O)."""
        kernel = self.weight.permute(*range(2, self.weight.dim()), 1, 0).to(dtype)
        pairs = self.in_channels // self.groups * self.out_channels
        gates = None if self.C is None else as_complex(self.C).mT
        taps = kernel if gates is None else kernel * gates
        lead, last = 1, len(self.n) - 1
        for i, (kmatrix, axis) in enumerate(zip(self.L, self.geometry.axes, strict=True)):
            side = columns(kmatrix.fused(self._dense_up_to), axis.kernel)
            taps = _along(taps, lead, axis.kernel.number)
            if i == last and self.b is not None:
                # b rides along as one more tap, whose weight is C
                b = as_complex(self.b).reshape(lead, axis.n, 1)
                side = torch.cat((side.expand(lead, -1, -1), b), 2)
                one = torch.ones((), dtype=dtype, device=taps.device) if gates is None else gates.reshape(1, 1, pairs)
                taps = torch.cat((taps, one.expand(lead, 1, pairs)), 1)
            taps = product(side.expand(lead, -1, -1), taps)
            lead *= axis.n
        return taps.reshape(lead, self.in_channels // self.groups, self.out_channels)

    def _synthesise(self, y: Tensor) -> Tensor:
        """Real(K y) at the output positions: (F, B, O) to real (B, O, *T)."""
        batch, outputs = y.shape[1:]
        lead = 1
        for kmatrix, axis in zip(self.K, self.geometry.axes, strict=True):
            y = rows(kmatrix.fused(self._dense_up_to), _along(y, lead, axis.n), axis.output)
            lead *= axis.output.number
        real = y.real.reshape(*self.output_size, batch, outputs)
        return real.permute(-2, -1, *range(len(self.n))).contiguous()

    @property
    def _dense_up_to(self) -> int:
        return DENSE_UP_TO[len(self.n)]

    def dense(self) -> Tensor:
        """The operation without its bias as a real matrix (out, *output_size, in, *input_size)."""
        axes = list(zip(self.geometry.axes, self.K, self.L, self.M, strict=True))
        left = reduce(torch.kron, (a.output.take(k.dense(), 0) for a, k, _, _ in axes))
        taps = reduce(torch.kron, (a.kernel.take(l_.dense(), 1) for a, _, l_, _ in axes))
        right = reduce(torch.kron, (m.dense() @ self._padding_matrix(a).to(left.dtype) for a, _, _, m in axes))
        diagonal = self.weight.flatten(2).to(left.dtype) @ taps.T
        if self.b is not None:
            diagonal = diagonal + as_complex(self.b).flatten()
        if self.C is not None:
            diagonal = diagonal * as_complex(self.C)[..., None]
        matrix = torch.einsum("tf,oif,fs->otis", left, diagonal, right).real
        full = matrix.new_zeros(self.out_channels, left.shape[0], self.in_channels, right.shape[1])
        outputs, inputs = self.out_channels // self.groups, self.in_channels // self.groups
        for g in range(self.groups):
            own = slice(g * outputs, (g + 1) * outputs)
            full[own, :, g * inputs : (g + 1) * inputs] = matrix[own]
        return full.reshape(self.out_channels, *self.output_size, self.in_channels, *self.input_size)

    def _padding_matrix(self, axis: Axis) -> Tensor:
        """(n, size): the padding of one axis, then zeros up to the transform size."""
        real = self.K[0].factors
        eye = torch.eye(axis.size, dtype=as_complex(real).real.dtype, device=real.device)
        padded = eye
        if axis.before or axis.after:
            padded = nn.functional.pad(eye[None], (axis.before, axis.after), mode=self.padding_mode)[0]
        return nn.functional.pad(padded, (0, axis.n - padded.shape[1])).T

    def extra_repr(self) -> str:
        """The arguments that tell the operation."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, input_size={self.input_size}, "
            f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}, "
            f"padding_mode={self.padding_mode!r}, depth={self.depth}, n={self.n}"
        )


def _autocast(x: Tensor) -> bool:
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _check_channels(in_channels: int, out_channels: int, groups: int) -> None:
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
        if not is_int(value) or value < 1:
            raise ValueError(f"XD: {name} {value!r} must be a positive int")
    if in_channels % groups or out_channels % groups:
        raise ValueError(f"XD: groups {groups} must divide in_channels {in_channels} and out_channels {out_channels}")


def _along(x: Tensor, lead: int, size: int) -> Tensor:
    """The same numbers as (lead, size, trail), also when there are none."""
    return x.reshape(lead, size, x.numel() // (lead * size))


def _mix_channels(x: Tensor, diagonals: Tensor, groups: int) -> Tensor:
    """Sum over input channels at every frequency: (F, B, I), (F, I / G, O) to (F, B, O)."""
    if groups == 1:
        return product(x, diagonals)
    frequencies, batch, _ = x.shape
    own, outputs = diagonals.shape[1:]
    x = x.view(frequencies, batch, groups, own)
    diagonals = diagonals.view(frequencies, own, groups, outputs // groups)
    if own == 1:
        return (x * diagonals).reshape(frequencies, batch, outputs)
    mixed = torch.matmul(x.transpose(1, 2), diagonals.transpose(1, 2))
    return mixed.transpose(1, 2).reshape(frequencies, batch, outputs)
