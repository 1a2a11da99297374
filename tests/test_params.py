"""Architecture parameters and model weights apart, and the distance from the start."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from xdnas.kmatrix import as_complex
from xdnas.params import (
    architecture_parameters,
    distance_from_start,
    model_weights,
    named_architecture_parameters,
    named_model_weights,
    parameter_groups,
)
from xdnas.xd import XD


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    shared = XD(2, 2, 3, (6, 5), padding=1)
    return nn.Sequential(shared, nn.BatchNorm2d(2), shared, XD(2, 3, 3, (6, 5), depth=(2, 1, 3), arch_bias=False))


def test_every_parameter_is_on_exactly_one_side(model: nn.Sequential) -> None:
    architecture, weights = dict(named_architecture_parameters(model)), dict(named_model_weights(model))
    assert architecture.keys() | weights.keys() == dict(model.named_parameters()).keys()
    assert not architecture.keys() & weights.keys()
    assert {name.split(".")[1] for name in architecture} == {"K", "L", "M", "b", "C"}
    assert list(weights) == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert len({id(p) for p in architecture_parameters(model)}) == len(architecture), "shared ones once"


def test_names_alone_do_not_make_architecture() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.K, self.b, self.C = nn.Linear(1, 1), nn.Parameter(torch.zeros(1)), XD(1, 1, 3, 8)

    model = Own()
    assert {name.split(".")[0] for name, _ in named_architecture_parameters(model)} == {"C"}
    assert {"K.weight", "b", "C.weight", "C.bias"} <= dict(named_model_weights(model)).keys()


def test_a_parametrized_gate_is_still_architecture(model: nn.Sequential) -> None:
    parametrize.register_parametrization(model[3], "C", nn.Identity())
    parametrize.register_parametrization(model[3], "weight", nn.Identity())
    names = [name for name, _ in named_architecture_parameters(model)]
    assert "3.parametrizations.C.original" in names
    assert "3.parametrizations.weight.original" in dict(named_model_weights(model))


def test_groups_for_stock_optimizers_do_not_decay_the_architecture(model: nn.Sequential) -> None:
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-2, arch_lr=1e-3, weight_decay=0.1), lr=1.0)
    weights, architecture = optimizer.param_groups
    assert (weights["lr"], weights["weight_decay"]) == (1e-2, 0.1)
    assert (architecture["lr"], architecture["weight_decay"]) == (1e-3, 0.0)
    assert {id(p) for p in weights["params"]} == {id(p) for p in model_weights(model)}
    assert len(parameter_groups(nn.Linear(1, 1))) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_start_is_at_distance_zero(model: nn.Sequential, dtype: torch.dtype) -> None:
    before = torch.random.get_rng_state()
    distances = distance_from_start(XD(2, 2, 3, (6, 5), dtype=dtype, padding=1, device="cpu").requires_grad_())
    assert distances == {"": dict.fromkeys(("K", "L", "M", "b", "C"), 0.0)}
    torch.random.set_rng_state(before)
    assert {name: set(d) for name, d in distance_from_start(model).items()} == {"0": set("KLMbC"), "3": set("KLMC")}
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_distance_is_that_of_the_dense_matrices(model: nn.Sequential) -> None:
    layer: Any = model[3]
    start = copy.deepcopy(layer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in architecture_parameters(model):
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    distances = distance_from_start(model)["3"]
    for name in "KLM":
        now, then = getattr(layer, name).dense().detach(), getattr(start, name).dense().detach()
        assert distances[name] == pytest.approx(float((now - then).norm() / then.norm()), rel=1e-5)
    gates = as_complex(layer.C.detach())
    assert distances["C"] == pytest.approx(float((gates - 1).abs().square().mean().sqrt()), rel=1e-5)


def test_small_distances_are_not_lost_to_rounding() -> None:
    layer = XD(1, 1, 3, (6, 5), dtype=torch.float64)
    with torch.no_grad():
        layer.M[0].factors.mul_(1 + 1e-9)
    assert distance_from_start(layer)[""]["M"] == pytest.approx(1e-9 * len(layer.M[0].butterflies()[0]), rel=1e-4)


def test_long_axes_are_taken_in_pieces() -> None:
    layer = XD(1, 1, 3, 1100, arch_bias=False, gates=False)
    with torch.no_grad():
        layer.K[0].factors.mul_(1.01)
    factors = len(layer.K[0].butterflies()[0])
    assert distance_from_start(layer)[""]["K"] == pytest.approx(1.01**factors - 1, rel=1e-3)
