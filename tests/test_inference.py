"""The inference copy computes what the model computes, asks for no gradient, and lives a life of its own."""

import copy
import pickle
import warnings
from typing import Any

import dense
import pytest
import torch
from dense import relative
from swapnet import SWAPPED, Net, assert_same_state, state
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from xdnas import XD, for_inference, restore, swap
from xdnas.inference import Fixed
from xdnas.params import xd_layers

LAYERS: dict[str, dict[str, Any]] = {
    "1d": {"kernel_size": 3, "input_size": 85, "padding": 1},
    "1d strided, grouped": {"kernel_size": 5, "input_size": 40, "stride": 3, "groups": 2, "depth": (2, 1, 3)},
    "2d": {"kernel_size": (3, 2), "input_size": (9, 10), "padding": (1, 0), "stride": (1, 2), "gates": False},
    "2d long": {"kernel_size": 3, "input_size": (130, 4), "padding": 1, "padding_mode": "circular", "bias": False},
    "3d": {"kernel_size": 2, "input_size": (4, 5, 6), "groups": 2, "padding_mode": "reflect", "padding": 1},
    "depthwise": {"kernel_size": 3, "input_size": 12, "groups": 4, "arch_bias": False, "dilation": 2},
    "compact": {"kernel_size": 3, "input_size": (9, 10), "padding": 1, "compact": True, "groups": 2},
    "compact long": {"kernel_size": 3, "input_size": 96, "padding_mode": "circular", "padding": 1, "compact": True},
    "masked": {"kernel_size": 3, "input_size": 6, "padding": 2, "causal": True, "groups": 2},
    "stack": {"kernel_size": 2, "input_size": 6, "padding": 2, "dilation": 2, "causal": "stack", "bias": False},
    "triangular": {"kernel_size": 3, "input_size": 6, "padding": 2, "causal": "triangular", "depth": 2},
    "compact masked": {"kernel_size": 3, "input_size": 6, "padding": 2, "causal": True, "compact": True},
    "masked without gates": {"kernel_size": 3, "input_size": 6, "padding": 2, "causal": True, "gates": False},
}


def make(name: str, dtype: torch.dtype = torch.float64) -> XD:
    torch.manual_seed(0)
    layer = XD(4, 8, **LAYERS[name], dtype=dtype)
    dense.perturb(layer, 0.05)
    return layer


def inputs(layer: XD, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """One of the layer's size; for a causal layer also a shorter one and one of several windows."""
    generator = torch.Generator().manual_seed(1)
    sizes: list[tuple[int, ...]] = [layer.input_size, *([(1,), (20,)] if layer.causal else [])]
    shapes = [(3, layer.in_channels, *size) for size in sizes]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


@pytest.fixture
def trained(net: Net, x: Tensor) -> Net:
    """In training mode, with a hook, a gradient and moved parameters."""
    swap(net.eval(), x)
    dense.perturb(net, 0.02)
    net.train()
    net.body["a"].register_forward_hook(doubled)
    net(x).sum().backward()
    return net


def doubled(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return 2 * output


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_alone(name: str) -> None:
    """The model is an XD itself; in values, and in the gradient by the input."""
    layer = make(name)
    fixed = for_inference(layer)
    assert isinstance(fixed, Fixed)
    assert layer.extra_repr() in repr(fixed)
    for x in inputs(layer):
        dense.assert_same(fixed(x), layer(x), [x], 1e-13, 1e-13)
        with torch.inference_mode():
            assert torch.equal(fixed(x), fixed(x.clone()))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precisions(name: str, dtype: torch.dtype) -> None:
    layer = make(name).to(dtype)
    fixed = for_inference(layer)
    for x in inputs(layer, dtype):
        y, wanted = fixed(x), layer(x)
        assert y.dtype == dtype
        assert relative(y.double(), wanted.double()) <= (1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(fixed(x), y)
    assert {b.dtype for key, b in fixed.named_buffers() if key not in ("bias", "kind")} == {torch.float32}


@pytest.mark.parametrize("name", LAYERS)
def test_only_buffers_that_make_a_round_trip(name: str) -> None:
    layer, other = make(name), make(name)
    dense.perturb(other, 0.1, seed=1)
    fixed, again = for_inference(layer), for_inference(other)
    x = inputs(layer)[0].detach()
    assert not list(fixed.parameters())
    assert not any(buffer.requires_grad for buffer in fixed.buffers())
    assert not torch.equal(fixed(x), again(x))
    again.load_state_dict(fixed.state_dict())
    for twin in (again, copy.deepcopy(fixed), pickle.loads(pickle.dumps(fixed))):
        assert torch.equal(twin(x), fixed(x))
    assert fixed.state_dict().keys() == dict(fixed.named_buffers()).keys() - {"kind"}
    doubled = copy.deepcopy(fixed).double()
    assert relative(doubled(x.double()), fixed(x).double()) <= 1e-6


def test_a_whole_model(trained: Net, x: Tensor) -> None:
    before, training = state(trained), trained.training
    fixed = for_inference(trained)
    assert_same_state(state(trained), before)
    assert trained.training is training
    assert type(fixed) is Net
    assert not any(module.training for module in fixed.modules())
    assert not any(tensor.requires_grad for tensor in (*fixed.parameters(), *fixed.buffers()))
    assert not xd_layers(fixed)
    assert [name for name, m in fixed.named_modules() if isinstance(m, Fixed)] == SWAPPED
    assert fixed.twice is fixed.alias, "shared layers stay shared"
    names = [name for name, _ in trained.named_modules(remove_duplicate=False) if not set(name.split(".")) & set("KLM")]
    assert [name for name, _ in fixed.named_modules(remove_duplicate=False)] == names
    storages = [{t.untyped_storage().data_ptr() for t in m.state_dict().values()} for m in (trained, fixed)]
    assert not storages[0] & storages[1]
    x = x.requires_grad_()
    y = fixed(x)
    dense.assert_same(y, trained.eval()(x), [x], 1e-6, 1e-6)
    assert all(p.grad is None for p in fixed.parameters())
    with torch.no_grad():
        for tensor in trained.state_dict().values():
            tensor.add_(1)
    assert torch.equal(fixed(x), y), "what happens to the model later does not matter"


def test_hooks_of_layers_are_kept(trained: Net, x: Tensor) -> None:
    fixed = for_inference(trained)
    with_hook = fixed(x)
    fixed.get_submodule("body.a")._forward_hooks.clear()
    assert not torch.allclose(fixed(x), with_hook)
    assert trained.body["a"]._forward_hooks, "the copy has hooks of its own"


def test_the_model_can_still_be_restored(net: Net, x: Tensor) -> None:
    wanted = net.eval()(x)
    swap(net, x, compact=True)
    fixed = for_inference(net)
    restore(net)
    assert torch.equal(net(x), wanted)
    torch.testing.assert_close(fixed(x), wanted, rtol=1e-5, atol=1e-5)


def test_several_forms_in_one_model() -> None:
    layers = [make("masked"), XD(8, 4, 3, 8, padding=1, dtype=torch.float64, compact=True)]
    dense.perturb(layers[1], 0.05)
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Dropout(), nn.Sequential(make("1d strided, grouped")))
    x = inputs(layers[0])[0]
    head = model[:4].eval()
    dense.assert_same(for_inference(head)(x), head(x), [x], 1e-13, 1e-13)
    assert [type(m).__name__ for m in for_inference(model).modules() if isinstance(m, Fixed)] == [
        "FixedByTaps",
        "FixedByFrequencies",
        "FixedByFrequencies",
    ]


@pytest.mark.parametrize("name", ["1d", "masked"])
def test_parametrized_and_frozen_weights(name: str) -> None:
    layer = make(name).requires_grad_(False)
    parametrizations.weight_norm(layer)
    (x, *_) = inputs(layer)
    dense.assert_same(for_inference(layer)(x), layer(x), [x], 1e-13, 1e-13)


def test_compile_without_graph_breaks() -> None:
    fixed = for_inference(make("compact", torch.float32))
    (x,) = inputs(make("compact"), torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.compile(fixed, fullgraph=True, backend="eager")(x)
    assert relative(y, fixed(x)) <= 1e-6


@pytest.mark.parametrize("name", ["1d", "2d", "3d", "compact", "masked"])
def test_an_empty_batch(name: str) -> None:
    layer = make(name)
    y = for_inference(layer)(inputs(layer)[0][:0])
    assert y.shape == (0, 8, *layer.output_size)
