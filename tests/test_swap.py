"""A swapped model is the model it was, keeps everything it had, and can go back. R and plain numbers: rows of users'
complaints about earlier tools."""

import copy
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from swapnet import SWAPPED, Net, assert_same_state, state
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from xdnas.params import architecture_parameters, model_weights
from xdnas.plan import plan
from xdnas.report import SwapError
from xdnas.restore import restore
from xdnas.swap import swap
from xdnas.xd import XD


def test_a_swapped_model_is_the_model_it_was(net: Net, x: Tensor) -> None:
    before = net.eval()(x)
    report = swap(net, x)
    assert [layer.name for layer in report.swapped] == SWAPPED
    assert type(net) is Net
    torch.testing.assert_close(net(x), before, rtol=1e-5, atol=1e-6)
    assert report.error is not None
    assert report.error < 1e-5
    assert all(layer.error is not None and layer.error < 1e-5 for layer in report.swapped)
    assert report.added == sum(p.numel() for p in architecture_parameters(net))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_two_and_three_axes_in_every_dtype(axes: int, dtype: torch.dtype) -> None:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    model = nn.Sequential(conv(2, 4, 3, padding=1), nn.ReLU(), conv(4, 2, 3)).to(dtype)
    x = torch.randn(2, 2, *(6, 7, 5)[:axes], generator=torch.Generator().manual_seed(0)).to(dtype)
    before = model(x)
    report = swap(model, x)
    assert model(x).dtype == dtype
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert report.error is not None
    assert report.error < {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 0.01}.get(dtype, 0.03)
    restore(model)
    assert torch.equal(model(x), before)


def test_plan_touches_nothing_and_says_what_swap_does(net: Net, x: Tensor) -> None:
    net(x).sum().backward()
    net.body.eval()
    before = state(net)
    planned = plan(net, x, depth=2)
    assert_same_state(state(net), before)
    swapped = swap(net, x, depth=2)
    assert [(a.name, a.swapped, a.reason, a.added, a.n) for a in planned.layers] == [
        (b.name, b.swapped, b.reason, b.added, b.n) for b in swapped.layers
    ]


def test_a_plan_without_a_layer_to_swap_tells_why() -> None:
    model, x = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 3, 1))), torch.randn(1, 3, 4, 4)
    assert "parametrized" in plan(model, x).layer("0").reason
    with pytest.raises(SwapError, match=r"no convolution is left to swap \(1 found\): '0': is parametrized"):
        swap(model, x)


def test_plan_tells_shapes_parameters_cost_and_reasons(net: Net, x: Tensor) -> None:
    report = plan(net, x)
    down = report.layer("down")
    assert (down.kernel_size, down.input_size, down.output_size) == ((3, 3), (10, 12), (5, 6))
    assert down.multiply_adds == 2 * 5 * 6 * 8 * 8 * 9
    assert down.xd_multiply_adds > down.multiply_adds
    assert report.layer("alias").names == ("twice", "alias")
    assert report.layer("twice").multiply_adds == 2 * 2 * 120 * 8 * 8 * 3, "both calls count"
    assert report.layer("aux").reason == "the sample input never calls it"
    assert "stem" in str(report)
    assert "never calls it" in str(report)
    with pytest.raises(ValueError, match="no layer 'stm'"):
        report.layer("stm")


def test_r4_the_sample_leaves_no_trace(x: Tensor) -> None:
    class Restless(Net):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.seen: Tensor
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.cache = x
            self.seen += 1
            x += torch.rand(1) + random.random() + float(np.random.rand())
            return super().forward(x)

    net, given = Restless(), x.clone()
    before = state(net)
    plan(net, x)
    assert_same_state(state(net), before)
    swap(net, x)
    assert "cache" not in vars(net)
    assert (net.calls, int(net.seen.sum())) == (0, 0)
    assert torch.equal(net.norm.running_mean, before["state"]["norm.running_mean"])
    assert torch.equal(torch.random.get_rng_state(), before["random"][0])
    assert torch.equal(x, given)
    assert all(p.grad is None for p in net.parameters())


def test_swap_and_restore_draw_no_random_numbers(net: Net, x: Tensor) -> None:
    before = torch.random.get_rng_state()
    swap(net, x)
    restore(net)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_r5_unreached_layers_stay(net: Net, x: Tensor) -> None:
    aux = net.aux
    swap(net, x)
    assert net.aux is aux


def test_r6_flags_and_frozen_layers_stay(net: Net, x: Tensor) -> None:
    net.stem.requires_grad_(False)
    assert net.down.bias is not None
    net.down.bias.requires_grad_(False)
    net.body.eval()
    report = swap(net, x)
    assert not any(p.requires_grad for p in net.stem.parameters())
    assert "frozen" in report.layer("stem").reason
    assert net.down.weight.requires_grad
    assert not net.down.bias.requires_grad
    assert all(p.requires_grad for p in architecture_parameters(net.down))
    assert [m.training for m in (net, net.stem, net.stem.K[0], net.body["a"], net.body["a"].K[0])] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_r7_42_43_deepcopy_pickle_and_whole_model_save(net: Net, x: Tensor, tmp_path: Path) -> None:
    swap(net.eval(), x)
    torch.save(net, tmp_path / "model.pt")
    copies = [
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        torch.load(tmp_path / "model.pt", weights_only=False),
    ]
    for twin in copies:
        assert type(twin) is Net
        assert twin.alias is twin.twice
        assert torch.equal(twin(x), net(x))
        restore(twin)
        assert type(twin.down) is nn.Conv2d
    assert isinstance(net.down, XD), "a copy's restore leaves the model"


def test_r8_r15_every_padding_mode_with_the_borders(x: Tensor) -> None:
    for mode in ("zeros", "circular", "reflect", "replicate"):
        report = swap(nn.Sequential(nn.Conv2d(3, 4, 5, padding=2, padding_mode=mode)), x)
        assert report.error is not None
        assert report.error < 1e-5


def test_parameter_objects_and_checkpoint_names_stay(net: Net, x: Tensor) -> None:
    parameters, names = dict(net.named_parameters()), list(net.state_dict())
    plain = copy.deepcopy(net.state_dict())
    swap(net, x)
    assert all(dict(net.named_parameters())[name] is p for name, p in parameters.items())
    assert {id(p) for p in model_weights(net)} == {id(p) for p in parameters.values()}
    assert [name for name in net.state_dict() if name in plain] == names
    result = net.load_state_dict(plain, strict=False)
    assert not result.unexpected_keys
    assert all(re.search(r"\.([KLM]\.\d\.factors|b|C)$", name) for name in result.missing_keys)


def test_29_18_state_dict_is_the_same_in_both_modes_and_holds_tensors(net: Net, x: Tensor) -> None:
    swap(net, x)
    assert set(net.train().state_dict()) == set(net.eval().state_dict())
    assert all(type(value) is Tensor for value in net.state_dict().values())


def test_an_optimizer_made_before_still_trains_the_weights(net: Net, x: Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    swap(net, x)
    before = net.stem.weight.detach().clone()
    net(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net.stem.weight, before)


def test_31_45_shared_layers_stay_shared() -> None:
    conv = nn.Conv1d(4, 4, 3, padding=1)
    model = nn.Sequential(conv, nn.Sequential(conv, nn.ReLU()), conv)
    report = swap(model, torch.randn(2, 4, 9))
    assert model[0] is model[2] is model.get_submodule("1.0")
    assert [layer.names for layer in report.layers] == [("0", "1.0", "2")]
    restored = restore(model)
    assert model[0] is model[2] is model.get_submodule("1.0")
    assert restored.layers[0].names == ("0", "1.0", "2")


def test_tied_weights_stay_tied(x: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
    model[1].weight = model[0].weight
    swap(model, x)
    assert model[0].weight is model[1].weight


def test_33_twice_on_disjoint_layers(net: Net, x: Tensor) -> None:
    before = net.eval()(x)
    swap(net, x, include="stem")
    stem = net.stem
    report = swap(net, x, include=["d*", re.compile(r"body\..")], depth=(2, 1, 2))
    assert net.stem is stem
    assert report.layer("stem").reason == "is an XD layer already"
    assert [layer.name for layer in report.swapped] == ["body.a", "down"]
    restore(net)
    assert torch.equal(net(x), before)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, SWAPPED),
        ({"include": "*a*"}, ["body.a", "twice"]),
        ({"include": "alias"}, ["twice"]),
        ({"include": re.compile("s.*|down")}, ["stem", "down"]),
        ({"include": nn.Conv2d, "exclude": ["stem", "b*"]}, ["twice", "down"]),
        ({"exclude": ("alias", "head")}, ["stem", "body.a", "down"]),
        ({"where": lambda name, module: module.bias is not None}, ["stem", "body.a", "down"]),
    ],
)
def test_choice_of_layers(net: Net, x: Tensor, choice: dict[str, Any], expected: list[str]) -> None:
    assert [layer.name for layer in swap(net, x, **choice).swapped] == expected


def test_names_with_glob_signs_are_names(x: Tensor) -> None:
    model = nn.Sequential()
    model.add_module("conv[0]*?", nn.Conv2d(3, 3, 1))
    assert swap(model, x, include="conv[0]*?").swapped


def test_hooks_of_swapped_layers_stay_and_can_be_removed(net: Net, x: Tensor) -> None:
    log: list[str] = []
    handles = [
        net.stem.register_forward_pre_hook(lambda m, a: log.append("pre")),
        net.stem.register_forward_hook(lambda m, a, k, o: log.append("post"), with_kwargs=True),
        net.stem.register_full_backward_hook(lambda m, i, o: log.append("back")),
        net.stem.register_state_dict_post_hook(lambda *_: log.append("saved")),
        net.stem.register_load_state_dict_pre_hook(lambda m, *a: log.append(type(m).__name__)),
    ]
    swap(net, x.requires_grad_())
    log.clear()
    net(x).sum().backward()
    net.load_state_dict(net.state_dict())
    assert log == ["pre", "post", "back", "saved", "XD"]
    restore(net)
    log.clear()
    net(x).sum().backward()
    net.load_state_dict(net.state_dict())
    assert log == ["pre", "post", "back", "saved", "Conv2d"]
    for handle in handles:
        handle.remove()
    log.clear()
    net(x).sum().backward()
    assert log == []


def test_numpy_integers_are_integers(x: Tensor) -> None:
    three: Any = np.int64(3)
    conv = nn.Conv2d(three, three, (three, 3), padding=three)
    assert swap(nn.Sequential(conv), x).layers[0].swapped
