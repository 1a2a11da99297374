"""What a convolution is, in numbers: where its taps, inputs and outputs stand on the axes of a circular transform.

Along one axis, output u of a convolution reads input u s + a d - p at tap a (stride s, dilation d, padding p). A
circular product of length n does the same when tap a stands at position p - a d and output u is read at u s, all modulo
n, provided that n leaves room for the zeros that the borders read. Only padding with something else than zeros is
carried out on the input.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from xdnas.transforms import good_size, is_good_size

PADDING_MODES = ("zeros", "circular", "reflect", "replicate")


class Positions(NamedTuple):
    """The positions start, start + step, ... modulo the size of an axis."""

    start: int
    step: int
    number: int

    def indices(self, n: int, device: torch.device) -> Tensor:
        """(number,) int64."""
        return (self.start + self.step * torch.arange(self.number, device=device)) % n

    def within(self, n: int) -> bool:
        """Whether they ascend on an axis of size n without wrapping around."""
        return self.start >= 0 and self.step > 0 and self.start + self.step * (self.number - 1) < n

    def take(self, x: Tensor, dim: int) -> Tensor:
        """These positions of one axis of x; a view where they do not wrap around."""
        n = x.shape[dim]
        return x[self._slices(dim)] if self.within(n) else x.index_select(dim, self.indices(n, x.device))

    def give(self, x: Tensor, dim: int, n: int) -> Tensor:
        """The transpose of `take` from an axis of size n: x put to these positions, added up where they meet."""
        whole = x.new_zeros(*x.shape[:dim], n, *x.shape[dim + 1 :])
        if not self.within(n):
            return whole.index_add_(dim, self.indices(n, x.device), x)
        whole[self._slices(dim)] = x
        return whole

    def _slices(self, dim: int) -> tuple[slice, ...]:
        return (slice(None),) * dim + (slice(self.start, self.start + self.step * self.number, self.step),)


class Axis(NamedTuple):
    """One axis: its input size, the padding carried out on it, its transform size, and where taps and outputs stand."""

    size: int
    before: int
    after: int
    n: int
    kernel: Positions
    output: Positions


class Geometry(NamedTuple):
    """All axes of a convolution, and how its border is filled."""

    axes: tuple[Axis, ...]
    padding_mode: str

    @property
    def n(self) -> tuple[int, ...]:
        """Transform size per axis."""
        return tuple(axis.n for axis in self.axes)

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output size per axis."""
        return tuple(axis.output.number for axis in self.axes)

    def pad(self, x: Tensor) -> Tensor:
        """Fill the border of x (B, C, *size) as far as the transform does not do it by itself."""
        pads = [p for axis in reversed(self.axes) for p in (axis.before, axis.after)]
        return F.pad(x, pads, mode=self.padding_mode) if any(pads) else x


Size = int | Sequence[int]


def per_axis(value: Size, dims: int, name: str, least: int) -> tuple[int, ...]:
    """An int or a sequence of ints as a tuple of `dims` ints, each at least `least`."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * dims
    if len(values) != dims or not all(is_int(v) and v >= least for v in values):
        raise ValueError(f"XD: {name} {value!r} must be an int or {dims} ints, each at least {least}")
    return tuple(map(int, values))


def is_int(value: object) -> bool:
    """Whether it is a whole number, of Python or NumPy; truth values are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def resolve_padding(padding: "str | Size", kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Padding before and after each axis; 'same' puts the odd one behind, as torch does."""
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"XD: padding {padding!r} must be 'same', 'valid', an int or one int per axis")
        totals = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in per_axis(padding, len(kernel), "padding", 0)]


def convolution_geometry(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: "str | Size",
    dilation: Sequence[int],
    padding_mode: str,
    size: "str | Size | None" = None,
) -> Geometry:
    """The geometry of a convolution; all sequences have one entry per axis.

    Args:
        size: transform size: None = the smallest 2^a 3^b 5^c that is large enough, "power_of_two", or sizes.

    Raises:
        ValueError: when the kernel does not fit, when torch would refuse the padding, or when `size` is too small.
    """
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"XD: padding_mode {padding_mode!r} is unknown; known: {', '.join(PADDING_MODES)}")
    pads = resolve_padding(padding, kernel_size, dilation)
    if padding == "same" and any(s != 1 for s in stride):
        raise ValueError(f"XD: padding 'same' needs stride 1, got {tuple(stride)}")
    padded = tuple(s + sum(p) for s, p in zip(input_size, pads, strict=True))
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel_size, dilation, strict=True))
    if any(r > p for r, p in zip(reach, padded, strict=True)):
        dilated = f" (with dilation {reach})" if max(dilation) > 1 else ""
        raise ValueError(f"XD: kernel {tuple(kernel_size)}{dilated} is larger than the padded input {padded}")
    limit = {"circular": 0, "reflect": 1}.get(padding_mode)
    if limit is not None and any(max(p) > s - limit for s, p in zip(input_size, pads, strict=True)):
        raise ValueError(f"XD: {padding_mode} padding {pads} is too wide for the input {tuple(input_size)}")
    sizes = _size_rules(size, len(kernel_size))
    axes = zip(input_size, kernel_size, stride, pads, dilation, sizes, strict=True)
    return Geometry(tuple(_axis(*axis, padding_mode=padding_mode) for axis in axes), padding_mode)


SizeRule = Callable[[int], int]


def _size_rules(size: "str | Size | None", dims: int) -> list[SizeRule]:
    """For each axis the rule that gives a transform size for the least one that is large enough."""
    if size is None:
        return [good_size] * dims
    if isinstance(size, str):
        if size != "power_of_two":
            raise ValueError(f"XD: size {size!r} must be None, 'power_of_two', an int or one int per axis")
        return [lambda least: good_size(least, power_of_two=True)] * dims
    return [_fixed_size(n) for n in per_axis(size, dims, "size", 2)]


def _fixed_size(n: int) -> SizeRule:
    if not is_good_size(n):
        raise ValueError(f"XD: size {n} is not 2^a 3^b 5^c; the next that is: {good_size(n)}")

    def rule(least: int) -> int:
        if n < least:
            raise ValueError(f"XD: size {n} is too small; this geometry needs at least {least}")
        return n

    return rule


def _axis(
    size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, rule: SizeRule, *, padding_mode: str
) -> Axis:
    before, after = pads
    count = (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
    output = Positions(0, stride, count)
    if padding_mode == "zeros":
        # the zeros behind the input serve both borders, since the axis is a circle
        last_read = (count - 1) * stride + (kernel - 1) * dilation - before
        n = rule(max(size + before, last_read + 1))
        return Axis(size, 0, 0, n, Positions(before, -dilation, kernel), output)
    if padding_mode == "circular" and _native_circle(size, rule):
        return Axis(size, 0, 0, size, Positions(before, -dilation, kernel), output)
    n = rule(size + before + after)
    return Axis(size, before, after, n, Positions(0, -dilation, kernel), output)


def _native_circle(size: int, rule: SizeRule) -> bool:
    """Whether the transform may have exactly the input's size, so that it wraps around as the padding does."""
    try:
        return rule(size) == size
    except ValueError:
        return False
