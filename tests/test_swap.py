"""A swapped model is the model it was, keeps everything it had, and can go back. R and plain numbers: rows of users'
complaints about earlier tools."""

import copy
import pickle
import random
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from xdnas.params import architecture_parameters, model_weights
from xdnas.plan import plan
from xdnas.report import SwapError
from xdnas.restore import restore
from xdnas.swap import swap
from xdnas.xd import XD


class Net(nn.Module):
    """Batch norm, grouped, strided, reflecting and shared convolutions, an unreached head, dropout."""

    # swaps change their types
    stem: Any
    norm: Any
    body: Any
    twice: Any
    alias: Any
    down: Any
    head: Any
    aux: Any

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.ModuleDict({"a": nn.Conv2d(8, 8, 3, padding=1, groups=2, padding_mode="reflect")})
        self.twice = nn.Conv2d(8, 8, (3, 1), padding="same", bias=False)
        self.alias = self.twice
        self.down = nn.Conv2d(8, 8, 3, stride=2, dilation=2, padding=2, padding_mode="circular")
        self.head = nn.Linear(8, 4)
        self.aux = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = self.twice(self.alias(self.body["a"](x)))
        x = nn.functional.dropout(self.down(x), training=self.training)
        y: Tensor = self.head(x.mean((-2, -1)))
        return y


SWAPPED = ["stem", "body.a", "twice", "down"]


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 10, 12, generator=torch.Generator().manual_seed(1))


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a swap must not change, by identity or value."""
    return {
        "modules": {name: id(m) for name, m in model.named_modules(remove_duplicate=False)},
        "parameters": {
            name: (id(p), p._version, p.requires_grad, p.grad is None) for name, p in model.named_parameters()
        },
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "training": {name: m.training for name, m in model.named_modules()},
        "hooks": {
            name: {k: dict(v) for k, v in vars(m).items() if "hook" in k and v} for name, m in model.named_modules()
        },
        "attributes": {name: set(vars(m)) for name, m in model.named_modules()},
        "random": (torch.random.get_rng_state(), random.getstate(), str(np.random.get_state())),
    }


def assert_same_state(now: dict[str, Any], before: dict[str, Any]) -> None:
    for key in ("state",):
        assert list(now[key]) == list(before[key])
        assert all(torch.equal(now[key][name], before[key][name]) for name in before[key])
    assert torch.equal(now["random"][0], before["random"][0])
    assert now["random"][1:] == before["random"][1:]
    for key in ("modules", "parameters", "training", "hooks", "attributes"):
        assert now[key] == before[key], key


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


class Quiet(nn.Conv2d):
    """Adds nothing but an attribute."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.note = "mine"


class Loud(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = super().forward(input)
        return 2 * y


class Standardised(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = super()._conv_forward(input, weight - weight.mean(), bias)
        return y


def test_r10_41_subclasses_only_when_they_compute_the_same(x: Tensor) -> None:
    model = nn.Sequential(Quiet(3, 3, 3, 1, 1), Loud(3, 3, 3), Standardised(3, 3, 1), nn.ConvTranspose2d(3, 3, 1))
    before = model(x)
    report = swap(model, x)
    assert isinstance(model[0], XD)
    assert model[0].note == "mine"
    assert [layer.reason for layer in report.layers] == [
        "",
        "its class Loud has a forward of its own",
        "its class Standardised has a _conv_forward of its own",
        "ConvTranspose2d is not supported; supported: Conv1d, Conv2d, Conv3d",
    ]
    restore(model)
    quiet: Any = model[0]
    assert type(quiet) is Quiet
    assert (quiet.note, quiet.padding) == ("mine", (1, 1))
    assert torch.equal(model(x), before)


def patched() -> nn.Module:
    conv: Any = nn.Conv2d(3, 3, 1)
    conv.forward = lambda input: input
    assert isinstance(conv, nn.Module)
    return conv


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Conv2d(3, 3, 1))


def with_buffer() -> nn.Module:
    conv = nn.Conv2d(3, 3, 1)
    conv.register_buffer("mask", torch.ones(1))
    return conv


def pruned() -> nn.Module:
    from torch.nn.utils import prune

    conv = nn.Conv2d(3, 3, 1)
    apply: Any = prune.L1Unstructured.apply
    apply(conv, "weight", 0.5)
    return conv


UNFIT = {
    "patched": (patched, "has a forward of its own, set on the instance"),
    "old weight norm": (old_weight_norm, "computed by WeightNorm"),
    "new weight norm": (lambda: parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), "is parametrized"),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Conv2d(3, 3, 1)), "is parametrized"),
    "old spectral norm": (lambda: nn.utils.spectral_norm(nn.Conv2d(3, 3, 1)), "computed by SpectralNorm"),
    "pruned": (pruned, "computed by L1Unstructured"),
    "buffer": (with_buffer, "state that a convolution does not have: 'mask'"),
    "complex": (lambda: nn.Conv2d(3, 3, 1, dtype=torch.complex64), "complex64"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_43_layers_with_computed_or_foreign_weights_stay(x: Tensor, case: str) -> None:
    make, reason = UNFIT[case]
    model: Any = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ModuleList([make()]))
    model.forward = lambda x: model[0](x)
    report = plan(model, x)
    assert report.layer("0").swapped
    assert reason in report.layer("1.0").reason
    with pytest.raises(SwapError, match=rf"layer '1.0' .* cannot be swapped: .*{re.escape(reason)}"):
        swap(model, x, include="1.0")


class Sizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.d(self.c(self.c(x)))
        return y


def test_a_layer_called_at_different_sizes_stays() -> None:
    net, x = Sizes(), torch.randn(1, 1, 9)
    assert swap(net, x).layer("c").reason == "is called at different sizes: 9, 7"
    with pytest.raises(SwapError, match=r"'c' cannot be swapped: is called at different sizes: 9, 7"):
        swap(net, x, include="c")


def test_a_layer_without_batch_axis_stays() -> None:
    model = nn.Sequential(nn.Conv1d(1, 1, 3))
    with pytest.raises(SwapError, match="'0': is called without a batch axis"):
        swap(model, torch.randn(1, 9))


@dataclass
class Answer:
    logits: Tensor
    hidden: tuple[Tensor, ...]


class Outputs(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv1d(1, 2, 3), kind

    def forward(self, x: Tensor) -> Any:
        y = self.conv(input=x) if self.kind == "keyword" else self.conv(x)
        kinds = {"dict": {"y": y, "n": 3, "label": y.argmax()}, "list": [y, [y, None]], "class": Answer(y, (y, y))}
        return kinds.get(self.kind, y.argmax(-1) if self.kind == "labels" else y)


@pytest.mark.parametrize("kind", ["keyword", "tensor", "dict", "list", "class"])
def test_outputs_of_any_structure_are_compared(kind: str) -> None:
    report = swap(Outputs(kind), torch.randn(2, 1, 8))
    assert report.error is not None
    assert report.error < 1e-5


def test_without_floating_point_output_only_layers_are_compared() -> None:
    report = swap(Outputs("labels"), torch.randn(2, 1, 8))
    assert report.error is None
    assert report.layers[0].error is not None


def faulty(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """An XD layer that is wrong in its last row only, or that fails."""
    forward = XD.forward

    def wrong(self: XD, input: Tensor) -> Tensor:
        if fault == "raises":
            raise RuntimeError("out of order")
        y = forward(self, input)
        y[..., -1:] *= 1.01
        return y

    monkeypatch.setattr(XD, "forward", wrong)


@pytest.mark.parametrize(
    ("fault", "message"), [("border", r"layer 'stem' differs by .* undone"), ("raises", "RuntimeError: out of order")]
)
def test_a_failed_swap_leaves_the_model_exactly_as_it_was(
    net: Net, x: Tensor, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    net.stem.register_load_state_dict_pre_hook(lambda m, *a: None)
    before = state(net)
    faulty(monkeypatch, fault)
    with pytest.raises(SwapError, match=message):
        swap(net, x)
    assert_same_state(state(net), before)
    net.load_state_dict(net.state_dict())


def test_a_layer_that_hides_outside_the_modules_is_found_out(x: Tensor) -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 3, 1)
            self.plain = [self.first]

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.plain[0](x)
            return y

    net = Hidden()
    with pytest.raises(SwapError, match="still calls the old layer 'first'"):
        swap(net, x)
    assert type(net.first) is nn.Conv2d


def test_constant_inputs_and_zero_kernels_are_no_error() -> None:
    derivative = nn.Conv1d(1, 1, 3, bias=False)
    zero = nn.Conv1d(1, 1, 3, bias=False)
    with torch.no_grad():
        derivative.weight.copy_(torch.tensor([[[0.3, -0.7, 0.4]]]))
        zero.weight.zero_()
    for conv in (derivative, zero):
        model: Any = nn.ModuleDict({"c": conv})
        model.forward = lambda x, c=model: c["c"](x).sum() * 0
        assert swap(model, torch.ones(1, 1, 30)).swapped


def test_meta_models_are_swapped_unmeasured() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU()).to("meta")
    report = swap(model, torch.empty(2, 2, 8, device="meta"))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert (report.error, report.layers[0].error) == (None, None)
    restore(model)
    assert type(model[0]) is nn.Conv1d


def test_autocast_around_and_inside_the_model(x: Tensor) -> None:
    class Mixed(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y: Tensor = self.layers(x)
            return y.float()

    layers = [nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3)]
    assert len(swap(Mixed(*copy.deepcopy(layers)), x).swapped) == 2
    with torch.autocast("cpu", torch.bfloat16):
        report = swap(nn.Sequential(*layers), x)
        assert torch.is_autocast_enabled("cpu")
    assert report.error is not None
    assert report.error < 1e-5


@pytest.fixture
def trained(net: Net, x: Tensor) -> Net:
    swap(net.eval(), x)
    with torch.no_grad():
        net.down.K[0].factors.add_(0.01)
        net.stem.C.mul_(1.01)
    return net


def test_restore_refuses_trained_layers_and_names_all(trained: Net) -> None:
    before = state(trained)
    with pytest.raises(SwapError, match=r"(?s)2 of 4 XD layers.*'stem': 1.0e-02.*C 1.0e-02.*'down': .*K "):
        restore(trained)
    assert_same_state(state(trained), before)


def test_restore_within_a_given_tolerance(trained: Net, x: Tensor) -> None:
    report = restore(trained, tolerance=0.5)
    assert report.layer("stem").error == pytest.approx(0.01, rel=0.1)
    assert not any(isinstance(m, XD) for m in trained.modules())


def test_restore_knows_the_operator_from_its_parameters(net: Net, x: Tensor) -> None:
    """Scaling K up and M down is another parametrization of the same operator."""
    swap(net, x, include="stem")
    with torch.no_grad():
        net.stem.K[0].factors[0].mul_(4.0)
        net.stem.M[0].factors[0].mul_(0.25)
    restore(net)


def test_restore_after_loading_a_state_dict(net: Net, x: Tensor) -> None:
    before, twin = net.eval()(x), Net()
    swap(net, x)
    swap(twin.eval(), x)
    twin.load_state_dict(net.state_dict())
    restore(twin)
    assert torch.equal(twin(x), before)


def test_restore_takes_weights_trained_meanwhile_and_xd_layers_made_by_hand(x: Tensor) -> None:
    model = nn.Sequential(XD(3, 4, 3, (10, 12), padding=1, bias=False), nn.Dropout())
    weight = model[0].weight
    before = model.eval()(x)
    restore(model)
    assert type(model[0]) is nn.Conv2d
    assert model[0].weight is weight
    assert model[0].bias is None
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)


def test_restore_refuses_a_parametrized_xd_layer(net: Net, x: Tensor) -> None:
    swap(net, x, include="stem")
    parametrize.register_parametrization(net.stem, "weight", nn.Identity())
    with pytest.raises(SwapError, match="'stem': its weight or bias is parametrized"):
        restore(net)
