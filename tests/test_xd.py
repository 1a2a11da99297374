"""XD as a PyTorch module: it does what users expect of any layer."""

import copy
import io
import pickle
import warnings
from typing import Any

import dense
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xdnas import XD, KMatrix

LAYERS: dict[str, dict[str, Any]] = {
    "1d": {"kernel_size": 3, "input_size": 85, "padding": 1},
    "1d long": {"kernel_size": 5, "input_size": 128, "padding": 2, "padding_mode": "circular"},
    "2d": {"kernel_size": (3, 2), "input_size": (9, 10), "padding": (1, 0), "stride": (1, 2), "depth": 3},
    "compact": {"kernel_size": 3, "input_size": 72, "padding": 1, "compact": True},
    "causal": {"kernel_size": 3, "input_size": 12, "padding": 2, "groups": 2, "causal": True},
    "stack": {"kernel_size": 3, "input_size": 12, "padding": 2, "causal": "stack"},
    "3d": {"kernel_size": 2, "input_size": (4, 5, 6), "groups": 2, "padding_mode": "reflect", "padding": 1},
}


@pytest.fixture(params=list(LAYERS))
def layer(request: pytest.FixtureRequest) -> XD:
    torch.manual_seed(0)
    result = XD(2, 4, **LAYERS[request.param])
    dense.perturb(result, 0.05)
    return result


def sample(layer: XD, batch: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, layer.in_channels, *layer.input_size, generator=generator).to(dtype)


def test_copies(layer: XD) -> None:
    x = sample(layer)
    y = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), y)


def test_state_dict(layer: XD) -> None:
    keys = list(layer.train().state_dict())
    assert keys == list(layer.eval().state_dict())
    assert set(keys) >= {"weight", "bias", "b", "C", "K.0.factors", "L.0.factors", "M.0.factors"}
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    stored = torch.load(buffer, weights_only=True)
    again = XD(2, 4, **next(k for k in LAYERS.values() if XD(2, 4, **k).extra_repr() == layer.extra_repr()))
    again.load_state_dict(stored)
    assert torch.equal(again(sample(layer)), layer(sample(layer)))
    again.load_state_dict(load(save({k: v.contiguous() for k, v in layer.state_dict().items()})), assign=True)
    assert torch.equal(again(sample(layer)), layer(sample(layer)))
    nested = nn.Sequential(layer, layer).state_dict()
    assert all(isinstance(v, Tensor) and not v.is_complex() for v in nested.values())


def test_load_state_dict_in_eval_is_seen_at_once(layer: XD) -> None:
    x, layer = sample(layer), layer.eval()
    before = layer(x)
    layer.load_state_dict({k: v * 2 if k == "weight" else v for k, v in layer.state_dict().items()})
    assert not torch.allclose(layer(x), before)


def test_double_and_float(layer: XD) -> None:
    y = layer.double()(sample(layer, dtype=torch.float64))
    assert y.dtype == torch.float64
    z = layer.float()(sample(layer))
    assert (z - y).norm() <= 1e-5 * y.norm()
    layer.to(torch.float64)
    assert (layer(sample(layer, dtype=torch.float64)) - y).norm() <= 1e-5 * y.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(layer: XD, dtype: torch.dtype) -> None:
    wanted = layer(sample(layer))
    y = layer.to(dtype)(sample(layer, dtype=dtype))
    assert y.dtype == dtype
    assert (y.float() - wanted).norm() <= (3e-2 if dtype == torch.bfloat16 else 5e-3) * wanted.norm()


def test_autocast_changes_nothing(layer: XD) -> None:
    x = sample(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, half = layer(x), layer(x.bfloat16())
    assert torch.equal(y, layer(x))
    assert half.dtype == torch.bfloat16


def test_two_runs_agree_bit_for_bit(layer: XD) -> None:
    x = sample(layer).requires_grad_()
    first, second = (torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_compile_without_graph_breaks(layer: XD) -> None:
    x = sample(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        y = compiled(x)
    assert (y - layer(x)).norm() <= 1e-6 * y.norm()


def test_export_with_a_free_batch_size(layer: XD) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            layer, (sample(layer),), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},)
        )
    x = sample(layer, batch=5)
    assert (program.module()(x) - layer(x)).norm() <= 1e-6 * layer(x).norm()


def test_functional_transforms(layer: XD) -> None:
    x = sample(layer)
    y = layer(x)
    parameters: dict[str, Tensor] = dict(layer.named_parameters())

    def call(p: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, p, (x,))
        return result

    assert torch.equal(call(parameters, x), y)
    one = torch.func.vmap(lambda x: call(parameters, x[None])[0])(x)
    assert (one - y).norm() <= 1e-5 * y.norm()
    stacked = {k: torch.stack((v, 2 * v)) for k, v in parameters.items()}
    two = torch.func.vmap(call, in_dims=(0, None))(stacked, x)
    assert (two[0] - y).norm() <= 1e-5 * y.norm()
    grads = torch.func.vmap(torch.func.grad(lambda p, x: call(p, x[None]).square().sum()), (None, 0))(parameters, x)
    total = torch.autograd.grad(y.square().sum(), list(parameters.values()))
    for name, g in zip(parameters, total, strict=True):
        assert (grads[name].sum(0) - g).norm() <= 1e-4 * g.norm().clamp_min(1)
    tangent = torch.func.jvp(lambda x: call(parameters, x), (x,), (x,))[1]
    bias = 0 if layer.bias is None else layer.bias.view(-1, *(1,) * len(layer.n))
    assert (tangent - (y - bias)).norm() <= 1e-5 * y.norm()


def test_activation_checkpoint(layer: XD) -> None:
    x = sample(layer).requires_grad_()
    a = torch.autograd.grad(layer(x).square().sum(), x)[0]
    b = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), x)[0]
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {}), (torch.optim.AdamW, {})]
    + [(getattr(torch.optim, name), {}) for name in ("NAdam", "RAdam", "RMSprop", "Adagrad", "Adafactor")],
)
@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"fused": True}])
def test_stock_optimizers(layer: XD, optimizer: Any, options: Any, form: Any) -> None:
    if "fused" in form and optimizer not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        pytest.skip("torch has no fused form of it")
    x, before = sample(layer), [p.clone() for p in layer.parameters()]
    step = optimizer(layer.parameters(), lr=1e-3, weight_decay=1e-4, **options, **form)
    loss = layer(x).square().mean()
    loss.backward()
    step.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    assert layer(x).square().mean() < loss


def test_training_helpers(layer: XD) -> None:
    layer(sample(layer)).square().sum().backward()
    assert torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0) > 1
    torch.nn.utils.clip_grad_value_(layer.parameters(), 1e-3)
    assert all(p.grad is not None and p.grad.abs().max() <= 1e-3 for p in layer.parameters())
    vector = torch.nn.utils.parameters_to_vector(layer.parameters())
    torch.nn.utils.vector_to_parameters(vector, layer.parameters())
    assert vector.numel() == sum(p.numel() for p in layer.parameters())
    assert not vector.is_complex()
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    averaged.update_parameters(layer)
    assert torch.equal(averaged(sample(layer)), layer(sample(layer)))
    scaler = torch.amp.GradScaler("cpu")
    step = torch.optim.SGD(layer.parameters(), lr=1e-3)
    scaler.scale(layer(sample(layer)).square().mean()).backward()
    scaler.step(step)


def test_meta_device() -> None:
    layer = XD(2, 3, 3, (5, 6), device="meta")
    assert layer(torch.empty(1, 2, 5, 6, device="meta")).shape == (1, 3, 3, 4)
    real = layer.to_empty(device="cpu")
    real.load_state_dict(XD(2, 3, 3, (5, 6)).state_dict())
    assert real(torch.randn(1, 2, 5, 6)).isfinite().all()


def test_an_empty_batch(layer: XD) -> None:
    y = layer(sample(layer, batch=0).requires_grad_())
    assert y.shape == (0, layer.out_channels, *layer.output_size)
    y.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("change", ["expanded", "strided", "channels last"])
def test_inputs_of_any_layout(layer: XD, change: str) -> None:
    x = sample(layer)
    if change == "expanded":
        x = x[:1].expand(3, *x.shape[1:])
    elif change == "strided":
        x = torch.stack((x, x), -1)[..., 0]
    else:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    assert torch.equal(layer(x), layer(x.contiguous()))


def test_the_input_is_not_changed(layer: XD) -> None:
    x = sample(layer)
    kept = x.clone()
    layer(x)
    assert torch.equal(x, kept)


def test_weights_start_as_those_of_the_convolution() -> None:
    torch.manual_seed(3)
    conv = nn.Conv2d(4, 6, 3, groups=2)
    torch.manual_seed(3)
    layer = XD(4, 6, 3, (8, 8), groups=2)
    assert torch.equal(layer.weight, conv.weight)
    assert conv.bias is not None
    assert layer.bias is not None
    assert torch.equal(layer.bias, conv.bias)


def test_from_conv_keeps_the_parameter_objects() -> None:
    conv = nn.Conv1d(2, 2, 3)
    conv.weight.requires_grad_(False)
    layer = XD.from_conv(conv.eval(), 10)
    assert layer.weight is conv.weight
    assert layer.bias is conv.bias
    assert not layer.training


def test_repr_tells_the_operation() -> None:
    text = repr(XD(3, 16, 3, (32, 32), padding=1))
    for part in ("3, 16", "kernel_size=(3, 3)", "n=(36, 36)", "depth=(1, 1, 1)"):
        assert part in text


def test_published_parameter_counts() -> None:
    """Architecture parameters of four layers, a complex number counted as one, at the published padded sizes."""

    def count(**options: Any) -> int:
        layer = XD(2, 2, arch_bias=False, gates=False, **options)
        numbers: int = sum(k.factors.numel() // 2 for k in (*layer.K, *layer.L, *layer.M))
        return 4 * numbers

    assert count(kernel_size=17, input_size=256, padding=8, padding_mode="circular") == 49_152
    assert count(kernel_size=17, input_size=8192, padding=8, padding_mode="circular") == 2_555_904
    assert count(kernel_size=13, input_size=(85, 85), padding=6, size="power_of_two") == 43_008


def test_kmatrices_are_ordinary_modules() -> None:
    layer = XD(1, 1, 3, 8)
    assert isinstance(layer.K[0], KMatrix)
    assert {n for n, _ in layer.named_modules()} >= {"K", "K.0", "L.0", "M.0"}
