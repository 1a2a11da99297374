"""The compact form: half of the spectrum, the same convolution at the start, and a smaller family of its own."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import dense
import pytest
import torch
from dense import relative
from swapnet import SWAPPED, Net
from test_theorems import CONV, check
from torch import Tensor, nn

from xdnas import XD, KMatrix, distance_from_start, load_architecture, plan, restore, save_architecture, swap
from xdnas.checkpoint import CheckpointError
from xdnas.params import xd_layers
from xdnas.spectrum import half, kept

SIZES = [2, 3, 4, 5, 12, 15, 30, 45, 60, 64, 72, 75, 90, 96, 100, 125, 128, 243, 1000]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("others", [(), (3,), (4, 2)])
def test_kept_are_the_frequencies_of_the_definition(n: int, others: tuple[int, ...]) -> None:
    own = half((n, *others), torch.device("cpu"))
    assert (own.rows.tolist(), own.counts.tolist()) == dense.kept((n, *others))
    assert kept((n, *others)) == len(own.rows)
    assert own.counts.sum() == n
    frequencies = KMatrix(n).frequencies[own.rows]
    partners = set(((n - frequencies) % n).tolist())
    assert partners | set(frequencies.tolist()) == set(range(n))
    if n <= (128 if others else 64):
        assert frequencies.tolist() == list(range(n // 2 + 1))


def test_numbers_of_kept_frequencies() -> None:
    """Files of compact layers depend on them."""
    sizes = (2, 12, 30, 45, 64, 72, 96, 100, 128, 1000)
    assert [kept((n,)) for n in sizes] == [2, 7, 16, 23, 33, 45, 60, 60, 72, 520]
    assert [kept((n, 8)) for n in sizes] == [2, 7, 16, 23, 33, 37, 49, 51, 65, 520]
    assert [kept((n, 8, 8)) for n in sizes] == [2, 7, 16, 23, 33, 37, 49, 51, 65, 520]


@pytest.mark.parametrize(("n", "kernel", "k"), [((36,), 3, 19), ((96,), 5, 60), ((12, 15), 3, 7), ((5, 4, 6), 2, 3)])
def test_shape_of_b(n: tuple[int, ...], kernel: int, k: int) -> None:
    layer = XD(2, 2, kernel, n, padding="same", padding_mode="circular", compact=True)
    assert layer.b is not None
    assert layer.n == n
    assert layer.b.shape == (k, *n[1:], 2)
    assert not XD(2, 2, kernel, n, arch_bias=False, compact=True).b
    assert "compact=True" in repr(layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 2), (1, 2, 4), (3, 2, 1)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_it_starts_at_the_convolution(
    dims: int, stride: int, dilation: int, groups: int, mode: str, dtype: torch.dtype
) -> None:
    conv = CONV[dims - 1](4, 8, 3, stride=stride, dilation=dilation, groups=groups, padding=2, padding_mode=mode)
    check(conv, (12, 9, 7)[:dims], dtype, compact=True)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("depth", [1, 2, 3, (1, 3, 2)])
def test_it_starts_at_the_convolution_at_every_size(n: int, depth: Any) -> None:
    check(nn.Conv1d(2, 3, 3, padding=1), (n,), torch.float64, compact=True, depth=depth)
    check(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (n,), torch.float64, compact=True, depth=depth)


@pytest.mark.parametrize("size", [None, "power_of_two", 150, (96, 16), (160, 144)])
def test_it_starts_at_the_convolution_on_two_long_axes(size: Any) -> None:
    shape = (90, 12) if size == (96, 16) else (130, 15)
    check(nn.Conv2d(2, 2, (3, 4), padding=(2, 1)), shape, torch.float64, depth=(2, 1, 3), size=size, compact=True)


def same_as_the_twin(layer: XD, scale: float) -> None:
    """In value, in every gradient, and as the matrix of dense()."""
    layer = layer.double()
    dense.perturb(layer, scale)
    x = torch.randn(2, layer.in_channels, *layer.input_size, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    dense.assert_same(y, dense.xd(layer, x), [x, *layer.parameters()])
    bias = 0 if layer.bias is None else layer.bias.view(-1, *(1,) * len(layer.n))
    by_matrix = x.flatten(1) @ layer.dense().reshape(y[0].numel(), -1).T
    assert relative(by_matrix.view_as(y) + bias, y) <= 1e-12


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("groups", "mode"), [(1, "zeros"), (2, "circular"), (4, "reflect")])
@pytest.mark.parametrize("options", [{}, {"arch_bias": False}, {"gates": False}, {"arch_bias": False, "gates": False}])
@pytest.mark.parametrize("depth", [1, (2, 3, 1)])
def test_anywhere_it_equals_the_dense_twin(dims: int, groups: int, mode: str, options: Any, depth: Any) -> None:
    settings = {"padding": 1, "stride": 2, "groups": groups, "padding_mode": mode, "depth": depth, **options}
    same_as_the_twin(XD(4, 4, 3, (10, 4, 3)[:dims], compact=True, **settings), 0.1)


@pytest.mark.parametrize("n", [(72,), (75,), (96,), (100,), (128,), (96, 4), (135, 3), (2, 135), (72, 2, 2)])
@pytest.mark.parametrize("depth", [1, (2, 1, 3)])
def test_sizes_with_several_block_factors_equal_the_dense_twin(n: tuple[int, ...], depth: Any) -> None:
    layer = XD(1, 2, 2, n, padding="same", padding_mode="circular", size=n, depth=depth, compact=True)
    assert layer.n == n
    same_as_the_twin(layer, 0.02)


def test_a_long_axis_equals_its_matrix() -> None:
    layer = XD(1, 1, 5, 1000, padding=2, padding_mode="circular", compact=True).double()
    dense.perturb(layer, 0.02)
    x = torch.randn(2, 1, 1000, dtype=torch.float64)
    assert layer.bias is not None
    assert relative(x @ layer.dense()[0, :, 0].T + layer.bias, layer(x)) <= 1e-12


def swapped(x: Tensor, **options: Any) -> Net:
    torch.manual_seed(0)
    model = Net().eval()
    swap(model, x, **options)
    return model


def moved(x: Tensor, **options: Any) -> Net:
    model = swapped(x, **options)
    dense.perturb(model, 0.02)
    return model


def test_a_swapped_model_is_the_model_and_comes_back(net: Net, x: Tensor) -> None:
    before = {name: id(p) for name, p in net.named_parameters()}
    wanted = net.eval()(x)
    assert [row.name for row in plan(net, x, compact=True).layers if row.swapped] == SWAPPED
    report = swap(net, x, compact=True)
    assert report.error is not None
    assert report.error <= 1e-5
    assert all(layer.compact for layer in xd_layers(net).values())
    assert {v for d in distance_from_start(net).values() for v in d.values()} == {0.0}
    torch.testing.assert_close(net(x), wanted, rtol=1e-5, atol=1e-5)
    restore(net)
    assert {name: id(p) for name, p in net.named_parameters()} == before
    assert torch.equal(net(x), wanted)


def test_models_with_compact_layers_are_saved_loaded_and_copied(x: Tensor, tmp_path: Path) -> None:
    model, twin, third = moved(x, compact=True), swapped(x, compact=True), swapped(x, compact=True)
    wanted = model(x)
    assert all(value > 0 for row in distance_from_start(model).values() for value in row.values())
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(x), wanted)
        assert all(layer.compact for layer in xd_layers(again).values())
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(x), wanted)
    save_architecture(model, tmp_path / "delta")
    third.load_state_dict(model.state_dict() | {k: v for k, v in third.state_dict().items() if ".K." in k})
    assert not torch.equal(third(x), wanted)
    load_architecture(third, tmp_path / "delta")
    assert torch.equal(third(x), wanted)


@pytest.mark.parametrize("options", [{}, {"arch_bias": False}])
@pytest.mark.parametrize("compact", [True, False])
def test_full_and_compact_refuse_the_files_of_each_other(
    x: Tensor, tmp_path: Path, compact: bool, options: dict[str, bool]
) -> None:
    """Without b all their shapes are the same."""
    save_architecture(moved(x, compact=compact, **options), tmp_path / "delta")
    other = swapped(x, compact=not compact, **options)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(CheckpointError, match=r"'stem': compact \w+ in the file, \w+ in the model"):
        load_architecture(other, tmp_path / "delta")
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_precisions_and_compilation() -> None:
    layer = XD(2, 4, 3, 10, padding=1, compact=True)
    dense.perturb(layer, 0.05)
    x = torch.randn(3, 2, 10)
    y, wanted = layer(x), copy.deepcopy(layer).double()(x.double())
    assert relative(y.double(), wanted) <= 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), y)
    for dtype, tolerance in ((torch.bfloat16, 3e-2), (torch.float16, 5e-3)):
        half_y = copy.deepcopy(layer).to(dtype)(x.to(dtype))
        assert half_y.dtype == dtype
        assert relative(half_y.float(), y) <= tolerance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert relative(compiled, y) <= 1e-6
