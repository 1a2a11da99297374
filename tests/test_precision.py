"""Automatic mixed precision does not touch an XD-operation, wherever it is on: forward, backward, copies, steps."""

from typing import Any

import dense
import pytest
import torch
from torch import Tensor

from xdnas import XD, for_inference

LAYERS: dict[str, dict[str, Any]] = {
    "whole": {"input_size": 16, "padding": 1},
    "many diagonals": {"in_channels": 64, "out_channels": 64, "input_size": 128, "padding": 1},
    "2d": {"input_size": (9, 10), "padding": 1},
    "compact": {"input_size": (9, 10), "padding": 1, "compact": True},
    "masked": {"input_size": 16, "padding": 2, "causal": True},
    "stack": {"input_size": 16, "padding": 2, "causal": "stack"},
    "triangular": {"input_size": 16, "padding": 2, "causal": "triangular"},
}


@pytest.fixture(params=list(LAYERS))
def layer(request: pytest.FixtureRequest) -> XD:
    torch.manual_seed(0)
    options = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, **LAYERS[request.param]}
    result = XD(**options)
    dense.perturb(result, 0.05)
    return result


def sample(layer: XD) -> Tensor:
    return torch.randn(2, layer.in_channels, *layer.input_size, requires_grad=True)


def mixed() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def derivatives(layer: XD, x: Tensor) -> list[Tensor]:
    inputs = [x, *layer.parameters()]
    first = torch.autograd.grad(layer(x).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), inputs, allow_unused=True)
    return [*first, *(g for g in second if g is not None)]


def test_gradients_of_both_orders_are_those_without_it(layer: XD) -> None:
    x = sample(layer)
    wanted = derivatives(layer, x)
    with mixed():
        given = derivatives(layer, x)
    for a, b in zip(given, wanted, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.detach().abs().max()))


def test_tangents_are_those_without_it(layer: XD) -> None:
    x, t = sample(layer).detach(), sample(layer).detach()
    wanted = torch.func.jvp(layer, (x,), (t,))[1]
    with mixed():
        torch.testing.assert_close(torch.func.jvp(layer, (x,), (t,))[1], wanted)


def test_an_inference_copy_made_inside(layer: XD) -> None:
    with mixed():
        fixed = for_inference(layer)
    assert {buffer.dtype for buffer in fixed.buffers()} == {torch.float32}
    x = sample(layer)
    torch.testing.assert_close(fixed(x), layer(x))


def test_steps_inside() -> None:
    torch.manual_seed(0)
    layer = XD(4, 4, 3, 16, padding=2, causal=True)
    x, wanted = sample(layer)[..., 0].detach(), layer.stepper()
    with mixed():
        inside = layer.stepper()
        y, _ = inside.step(x, inside.start(2))
    torch.testing.assert_close(y, wanted.step(x, wanted.start(2))[0])


def test_batches_of_cotangents_are_refused_in_words() -> None:
    layer, x = XD(2, 2, 3, 8, padding=1), torch.randn(1, 2, 8)
    with pytest.raises(NotImplementedError, match=r"vectorize=True.*use torch.func.jacrev"):
        torch.autograd.functional.jacobian(layer, x, vectorize=True)
    assert torch.func.jacrev(layer)(x).shape == (1, 2, 8, 1, 2, 8)
