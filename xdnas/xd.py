"""The XD-operation (Roberts et al. 2021, Definition 3.2): Real(K sum_j C[i,j] diag(L w[i,j] + b) M x_j).

Shapes in comments: B batch, I inputs, O outputs, G groups, F frequencies (the product of all axes), N, T input and
output positions.
"""

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Self, cast

import torch
from torch import Tensor, nn

from xdnas import warmstart
from xdnas.fused import columns
from xdnas.geometry import Axis, Size, convolution_geometry, is_int, per_axis
from xdnas.kmatrix import as_complex
from xdnas.pipeline import operate
from xdnas.planes import real_matrices
from xdnas.stages import analysis, single, synthesis
from xdnas.steps import run

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
        dtype = as_complex(self.K[0].factors).real.dtype
        y = self._evaluate(self.geometry.pad(x.to(dtype)), *self._diagonals(dtype))
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view(-1, *(1,) * len(self.n))
        return y.to(x.dtype)

    def _evaluate(self, x: Tensor, side: Tensor, taps: Tensor) -> Tensor:
        axes = self.geometry.axes
        before, first = analysis([k.fused(self._dense_up_to) for k in self.M], x.shape[2:])
        behind, second = synthesis([k.fused(self._dense_up_to) for k in self.K], [axis.output for axis in axes])
        return operate(before, behind, self.groups, self.output_size, x, side, taps, first, second)

    def _check_input(self, x: Tensor) -> None:
        wanted = (self.in_channels, *self.input_size)
        if x.dim() != len(wanted) + 1 or tuple(x.shape[1:]) != wanted:
            raise ValueError(
                f"XD: input {tuple(x.shape)} does not fit; this layer takes (batch, {', '.join(map(str, wanted))}). "
                "K, L and M belong to one input size: swap the layer again for another"
            )
        if x.dtype != self.weight.dtype and not _autocast(x):
            raise TypeError(f"XD: input is {x.dtype} and the layer {self.weight.dtype}; convert one of them")

    def _diagonals(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Two matrices, (1 or lead, 2 n, k) and (lead, k, pairs), whose product is C (L w + b) for all pairs."""
        taps, ones = self._gated_kernel(dtype)
        sides = [
            columns(kmatrix.fused(self._dense_up_to), axis.kernel)
            for kmatrix, axis in zip(self.L, self.geometry.axes, strict=True)
        ]
        stages, tensors = analysis([single(side) for side in sides[:-1]], self.kernel_size[:-1], taps.shape[0])
        taps = run(stages, taps, tensors)
        lead, last = prod(self.n[:-1]), self.n[-1]
        taps = taps.reshape(lead, -1, ones.shape[1])
        planes = taps.shape[1] // self.kernel_size[-1]
        matrix = real_matrices(sides[-1][None], 2, planes, rows_inside=True, columns_inside=False)
        if self.b is not None:
            # b rides along as one more tap, whose weight is C
            b = as_complex(self.b).reshape(lead, last, 1)
            b_matrix = real_matrices(b, 2, ones.shape[0], rows_inside=True, columns_inside=False)
            matrix = torch.cat((matrix.expand(lead, -1, -1), b_matrix), 2)
            taps = torch.cat((taps, ones.expand(lead, -1, -1)), 1)
        return matrix, taps

    def _gated_kernel(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """C w as (planes, taps, pairs) and C as (planes, pairs), real without gates; pairs (G, I / G, O / G)."""
        own, outputs = self.in_channels // self.groups, self.out_channels // self.groups
        pairs = self.in_channels * outputs
        kernel = self.weight.to(dtype).reshape(self.groups, outputs, own, -1).permute(3, 0, 2, 1).reshape(-1, pairs)
        if self.C is None:
            return kernel[None], torch.ones(1, pairs, dtype=dtype, device=kernel.device)
        gates = self.C.to(dtype).view(self.groups, outputs, own, 2).permute(3, 0, 2, 1).reshape(2, pairs)
        return gates[:, None] * kernel, gates

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
