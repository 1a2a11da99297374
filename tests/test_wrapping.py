"""Outputs that wrap around the circle, as padding wider than the kernel or a stride over the end asks for."""

from typing import Any

import dense
import pytest
import torch
from torch import nn

from xdnas import XD

CASES: list[tuple[Any, tuple[int, ...]]] = [
    (nn.Conv1d(1, 1, 1, padding=1), (71,)),
    (nn.Conv1d(2, 1, 2, padding=1, padding_mode="circular"), (128,)),
    (nn.Conv1d(2, 1, 1, stride=3, padding=4), (131,)),
    (nn.Conv1d(1, 2, 3, padding=90, padding_mode="circular"), (96,)),
    (nn.Conv2d(1, 1, 3, padding=2, padding_mode="circular"), (256, 8)),
    (nn.Conv2d(2, 2, 3, padding=3, padding_mode="circular", groups=2), (4, 130)),
]


@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"compact": True}])
@pytest.mark.parametrize(("conv", "size"), CASES)
def test_outputs_that_wrap(conv: Any, size: tuple[int, ...], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    conv = conv.double()
    x = torch.randn(2, conv.in_channels, *size, dtype=torch.float64, requires_grad=True)
    layer = XD.from_conv(conv, size, **options)
    dense.assert_same(layer(x), conv(x), [x, *conv.parameters()], 1e-12, 1e-12)
    dense.perturb(layer, 0.05)
    leaves = [x, *layer.parameters()]
    matrix = layer.dense().flatten(0, conv.weight.dim() - 2).flatten(1)
    bias = layer.bias
    assert bias is not None
    y = (x.flatten(1) @ matrix.T).unflatten(1, (conv.out_channels, -1)) + bias[:, None]
    dense.assert_same(layer(x).flatten(2), y, leaves, 1e-11, 1e-11)
