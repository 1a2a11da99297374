"""What a swap leaves alone, and that one which fails changes nothing."""

import copy
import re
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from swapnet import Net, assert_same_state, state
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from xdnas.plan import plan
from xdnas.report import SwapError
from xdnas.restore import restore
from xdnas.swap import swap
from xdnas.xd import XD


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


class Twice(nn.Module):
    """Calls a layer as a submodule and through a list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.hidden = [self.conv]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.hidden[0](self.conv(x))
        return y


def test_half_of_the_calls_hidden_is_found_out_too(x: Tensor) -> None:
    model = Twice()
    with pytest.raises(SwapError, match=r"'conv' .*: 2 calls before, 1 of the new one"):
        swap(model, x)
    assert type(model.conv) is nn.Conv2d


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_are_refused_and_keep_their_mode(x: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), torch.jit.script(nn.Conv2d(3, 3, 1)), nn.Dropout())
    with pytest.raises(SwapError, match=r"'1' is compiled by torch.jit; swap first"):
        plan(model, x)
    assert all(module.training for module in model.modules())


class Penalised(nn.Conv2d):
    def penalty(self) -> Tensor:
        return self.weight.square().sum()


def test_a_subclass_with_methods_of_its_own_stays(x: Tensor) -> None:
    report = plan(nn.Sequential(nn.Conv2d(3, 3, 1), Penalised(3, 3, 1)), x)
    assert "Penalised has a penalty of its own" in report.layer("1").reason


def test_swapped_in_inference_mode_it_can_still_be_trained(x: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1))
    with torch.inference_mode():
        swap(model, x.clone())
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


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
