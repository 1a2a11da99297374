"""XD started from a convolution is that convolution: over its whole output, borders included, and in its gradients."""

import random
from typing import Any

import dense
import pytest
import torch
from dense import relative
from torch import Tensor, nn

from xdnas import XD

CONV: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def check(conv: Any, input_size: tuple[int, ...], dtype: torch.dtype, **options: Any) -> None:
    conv = conv.to(dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, conv.in_channels, *input_size, generator=generator, dtype=dtype, requires_grad=True)
    y = conv(x)
    layer = XD.from_conv(conv, input_size, **options)
    z = layer(x)
    assert z.dtype == dtype
    dense.assert_same(z, y, [*conv.parameters(), x], TOLERANCE[dtype], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("padding", [0, 1, 3, "same"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding_of_every_mode(dims: int, padding: "int | str", mode: str, dtype: torch.dtype) -> None:
    for n in (7, 12):
        conv = CONV[dims - 1](2, 3, 5, padding=padding, padding_mode=mode)
        check(conv, (n, 9, 7)[:dims], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_stride_dilation_groups(dims: int, stride: int, dilation: int, groups: int, dtype: torch.dtype) -> None:
    for outputs in (4, 8):
        conv = CONV[dims - 1](4, outputs, 3, stride=stride, dilation=dilation, groups=groups, padding=1, bias=False)
        check(conv, (11, 8, 9)[:dims], dtype)


@pytest.mark.parametrize("depth", [None, 1, 2, 3, 4, (1, 3, 1), (3, 1, 2)])
@pytest.mark.parametrize("size", [None, "power_of_two", 150, (160, 144)])
def test_depth_and_size(depth: Any, size: Any) -> None:
    check(nn.Conv2d(2, 2, (3, 4), padding=(2, 1)), (130, 15), torch.float64, depth=depth, size=size)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 31, 64, 85, 97, 128, 255, 1000])
def test_sizes(n: int) -> None:
    check(nn.Conv1d(2, 3, 3, padding=1), (n,), torch.float64)
    check(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (n,), torch.float64)


def test_two_long_axes() -> None:
    check(nn.Conv2d(1, 2, 3, padding=1), (141, 150), torch.float64)


@pytest.mark.parametrize("seed", range(60))
def test_random_settings(seed: int) -> None:
    r = random.Random(seed)
    dims, groups = r.randint(1, 3), r.choice([1, 1, 2, 3])
    kernel = tuple(r.randint(1, 5) for _ in range(dims))
    dilation = tuple(r.randint(1, 2) for _ in range(dims))
    mode = r.choice(["zeros", "circular", "reflect", "replicate"])
    # reflect padding needs an input wider than it, every padded input must hold the kernel
    size = tuple(r.randint(max(4, d * (k - 1) + 1), 14) for k, d in zip(kernel, dilation, strict=True))
    conv = CONV[dims - 1](
        groups * r.randint(1, 2),
        groups * r.randint(1, 3),
        kernel,
        stride=tuple(r.randint(1, 3) for _ in range(dims)),
        padding=tuple(r.randint(0, 3) for _ in range(dims)),
        dilation=dilation,
        groups=groups,
        padding_mode=mode,
        bias=r.random() < 0.5,
    )
    options = {"gates": r.random() < 0.5, "arch_bias": r.random() < 0.5}
    for compact in (False, True):
        check(conv, size, torch.float64, compact=compact, **options)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
@pytest.mark.parametrize("options", [{}, {"arch_bias": False}, {"gates": False}, {"arch_bias": False, "gates": False}])
@pytest.mark.parametrize("depth", [1, (2, 3, 1)])
def test_anywhere_it_equals_the_dense_twin(dims: int, groups: int, mode: str, options: Any, depth: Any) -> None:
    """Off the start too, in value, in every gradient, and as the matrix of dense()."""
    size = (10, 4, 3)[:dims]
    layer = XD(4, 4, 3, size, padding=1, stride=2, groups=groups, padding_mode=mode, depth=depth, **options).double()
    dense.perturb(layer)
    x = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    fast, slow = layer(x), dense.xd(layer, x)
    dense.assert_same(fast, slow, [x, *layer.parameters()])
    without_bias = fast if layer.bias is None else fast - layer.bias.view(-1, *(1,) * dims)
    matrix = layer.dense().reshape(without_bias[0].numel(), -1)
    assert relative(x.flatten(1) @ matrix.T, without_bias.flatten(1)) <= 1e-12


@pytest.mark.parametrize("n", [100, 1024])
def test_long_axes_equal_the_dense_twin(n: int) -> None:
    layer = XD(1, 2, 5, n, padding=2, depth=(2, 1, 3)).double()
    dense.perturb(layer, 0.02)
    x = torch.randn(1, 1, n, dtype=torch.float64)
    assert relative(layer(x), dense.xd(layer, x)) <= 1e-12


def test_gradcheck_to_second_order() -> None:
    layer = XD(2, 2, 2, 5, padding=1, padding_mode="replicate").double()
    dense.perturb(layer)
    names, values = zip(*layer.named_parameters(), strict=True)

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return result

    x = torch.randn(1, 2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, *values))
    assert torch.autograd.gradgradcheck(call, (x, *values))


def test_an_architecture_that_no_convolution_has() -> None:
    """K, L and M go where convolutions cannot: a permuted convolution is an XD-operation of depth 3."""
    from xdnas import KMatrix

    p = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    layer = XD(1, 1, 3, 16, padding=1, padding_mode="circular", depth=(1, 1, 3), arch_bias=False, gates=False).double()
    x = torch.randn(4, 1, 16, dtype=torch.float64)
    wanted = layer(x[..., p])
    with torch.no_grad():
        route = KMatrix(16, 3, p, increasing_stride=False, dtype=torch.float64).factors
        layer.M[0].factors[:2] = route[:2]
    assert relative(layer(x), wanted) <= 1e-12
