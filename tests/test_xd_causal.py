"""Causal XD layers: no output sees a later step, whatever K, L, M, b and C; at the start they are convolutions."""

import copy
import warnings
from pathlib import Path
from typing import Any

import dense
import pytest
import torch
from dense import relative
from test_theorems import check
from torch import Tensor, nn

from xdnas import XD, distance_from_start, load_architecture, restore, save_architecture, swap
from xdnas.checkpoint import CheckpointError

FORMS: dict[str, dict[str, Any]] = {
    "masked": {"causal": True},
    "stack": {"causal": "stack"},
    "triangular": {"causal": "triangular"},
    "compact": {"causal": True, "compact": True},
    "compact stack": {"causal": "stack", "compact": True},
}
MASKED = [name for name in FORMS if name != "triangular"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"arch_bias": False},
    {"gates": False, "bias": False},
    {"arch_bias": False, "gates": False, "depth": 3},
    {"groups": 2, "depth": (2, 3, 1)},
    {"groups": 4, "dilation": 2, "gates": False, "size": 30},
    {"input_size": 1, "kernel": 2, "groups": 2},
    {"input_size": 2, "kernel": 1},
    {"input_size": 13, "kernel": 5, "scale": 0.05, "size": 72},
]


def make(form: str, input_size: int = 6, kernel: int = 3, scale: float = 0.1, **options: Any) -> XD:
    torch.manual_seed(0)
    padding = (kernel - 1) * options.get("dilation", 1)
    layer = XD(4, 4, kernel, input_size, padding=padding, dtype=torch.float64, **FORMS[form], **options)
    dense.perturb(layer, scale)
    return layer


def signal(steps: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(steps)
    return torch.randn(batch, 4, steps, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"depth": (2, 1, 3)}, {"gates": False, "arch_bias": False}, {"size": 90}])
@pytest.mark.parametrize("form", MASKED)
def test_it_starts_at_the_convolution(form: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    for kernel, dilation, groups in ((1, 1, 1), (3, 1, 2), (3, 4, 1), (5, 2, 4)):
        conv = nn.Conv1d(4, 8, kernel, padding=(kernel - 1) * dilation, dilation=dilation, groups=groups)
        for n in (1, 2, 9, 40):
            check(conv, (n,), dtype, **FORMS[form], **options)


@pytest.mark.parametrize("form", MASKED)
def test_it_starts_at_the_convolution_on_inputs_of_any_length(form: str) -> None:
    """Of half a window at most, so that no seam shows."""
    conv = nn.Conv1d(4, 4, 3, padding=4, dilation=2, groups=2, dtype=torch.float64)
    layer = XD.from_conv(conv, 9, **FORMS[form])
    for steps in (1, 4, 8, 10, 13, 40):
        x = signal(steps)
        dense.assert_same(layer(x), conv(x), [x, *conv.parameters()], 1e-12, 1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("depth", [1, 2, (1, 3, 2)])
def test_triangular_starts_at_the_product_with_the_last_tap(groups: int, depth: Any) -> None:
    for kernel, dilation in ((1, 1), (3, 1), (2, 5)):
        tail = (kernel - 1) * dilation
        conv = nn.Conv1d(4, 4, kernel, padding=tail, dilation=dilation, groups=groups, dtype=torch.float64)
        layer = XD.from_conv(conv, 9, causal="triangular", depth=depth)
        for steps in (1, 8, 9, 30):
            x = signal(steps)
            last = nn.functional.conv1d(x, conv.weight[..., -1:], conv.bias, groups=groups)
            behind = torch.zeros(2, 4, tail) if conv.bias is None else conv.bias[:, None].expand(2, 4, tail)
            dense.assert_same(layer(x), torch.cat((last, behind), 2), [x, *conv.parameters()], 1e-12, 1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_anywhere_it_equals_the_dense_twin_at_every_length(form: str, options: dict[str, Any]) -> None:
    layer = make(form, **options)
    (history,) = layer.input_size
    for steps in sorted({1, max(1, history - 1), history, history + 1, 3 * history + 2}):
        x = signal(steps)
        dense.assert_same(layer(x), dense.causal(layer, x), [x, *layer.parameters()])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_the_jacobian_is_exactly_zero_above_the_diagonal(form: str, options: dict[str, Any]) -> None:
    layer = make(form, **{"scale": 1.0, **options})
    (history,), own = layer.input_size, 4 // layer.groups
    inside = torch.block_diag(*[torch.ones(own, own)] * layer.groups).bool()
    matrices = [layer.dense()]
    for steps in (history, 1, 2 * history + 3):
        x = signal(steps, batch=1)
        matrices.append(torch.autograd.functional.jacobian(layer, x, vectorize=True)[0, :, :, 0])
    assert relative(matrices[0], matrices[1]) <= 1e-12
    for matrix in matrices:
        _, length, _, steps = matrix.shape
        later = torch.ones(length, steps, dtype=torch.bool).triu(1)
        assert (matrix.transpose(1, 2)[:, :, later] == 0).all()
        assert (matrix.diagonal(dim1=1, dim2=3)[inside] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_and_stack_agree(dtype: torch.dtype) -> None:
    layer, twin = (make(form, 20, 3, depth=2, groups=2).to(dtype) for form in ("masked", "stack"))
    for steps in (1, 19, 20, 50):
        x = signal(steps, dtype=dtype)
        assert relative(layer(x), twin(x)) <= (1e-12 if dtype == torch.float64 else 2e-6)


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_reaches_no_earlier_output(form: str, lost: float) -> None:
    layer = make(form, groups=2)
    for steps in (1, 6, 15):
        for t in range(steps):
            x = signal(steps).detach()
            y = layer(x)
            x[0, 1, t] = lost
            z = layer(x)
            assert torch.equal(z[..., :t], y[..., :t])
            assert torch.equal(z[1], y[1])
            assert not z[0, :2, t].isfinite().any()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_steps_equal_the_whole_pass(form: str, options: dict[str, Any]) -> None:
    layer = make(form, **options)
    steps = 4 * layer.input_size[0] + 3
    x = signal(steps).detach()
    with torch.no_grad():
        stepper, wanted = layer.stepper(), layer(x)[..., :steps]
        state, outputs = stepper.start(2), []
        for t in range(steps):
            y, state = stepper.step(x[..., t], state)
            outputs.append(y)
    assert relative(torch.stack(outputs, 2), wanted) <= 1e-10


def test_a_stepper_stays_what_the_layer_was() -> None:
    layer = make("masked")
    x = signal(1).detach()[..., 0]
    with torch.no_grad():
        stepper = layer.stepper()
        before = stepper.step(x, stepper.start(2))[0].clone()
        dense.perturb(layer)
        assert torch.equal(stepper.step(x, stepper.start(2))[0], before)


class Temporal(nn.Module):
    """Causal convolutions, and nothing else that moves along the steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv1d(4, 6, 3, padding=2)
        self.second = nn.Conv1d(6, 3, 2, padding=2, dilation=2, groups=3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x)[..., : x.shape[2]].tanh())
        return y[..., : x.shape[2]]


def supernet(**options: Any) -> Temporal:
    model = Temporal()
    swap(model, signal(8, dtype=torch.float32), **options)
    return model


@pytest.mark.parametrize("form", MASKED)
def test_whole_models(form: str, tmp_path: Path) -> None:
    x, options = signal(8, dtype=torch.float32), FORMS[form]
    model, conv = supernet(**options), Temporal()
    for steps in (1, 8, 30):
        longer = signal(steps, dtype=torch.float32)
        assert relative(model(longer), conv(longer)) <= 1e-6
    assert {v for row in distance_from_start(model).values() for v in row.values()} == {0.0}
    restore(back := copy.deepcopy(model))
    assert torch.equal(back(x), conv(x))
    dense.perturb(model, 0.1)
    jacobian = torch.autograd.functional.jacobian(model, signal(20, 1, torch.float32), vectorize=True)[0, :, :, 0]
    assert (jacobian.transpose(1, 2)[:, :, torch.ones(20, 20).triu(1).bool()] == 0).all()
    twin, third, wanted = supernet(**options), supernet(**options), model(x)
    twin.load_state_dict(model.state_dict())
    save_architecture(model, tmp_path / "delta")
    third.load_state_dict(model.state_dict() | {k: v for k, v in third.state_dict().items() if ".K." in k})
    load_architecture(third, tmp_path / "delta")
    for again in (twin, third, copy.deepcopy(model)):
        assert torch.equal(again(x), wanted)
    for other in ({}, {"causal": "stack" if options["causal"] is True else True}, {**options, "compact": True}):
        if other != options:
            with pytest.raises(CheckpointError, match=r"'first': .*c(ompact|ausal) \w+ in the file, \w+ in the model"):
                load_architecture(supernet(**other), tmp_path / "delta")


def test_distances_of_a_triangular_layer() -> None:
    layer = XD(2, 2, 3, 9, padding=2, causal="triangular", depth=(2, 1, 3))
    assert distance_from_start(layer)[""] == dict.fromkeys("KLMbC", 0.0)
    dense.perturb(layer)
    assert all(value > 0 for value in distance_from_start(layer)[""].values())


@pytest.mark.parametrize("form", FORMS)
def test_precisions(form: str) -> None:
    wanted, layer = make(form), make(form).float()
    for steps in (6, 15):
        x = signal(steps, dtype=torch.float32)
        y = layer(x)
        assert relative(y.double(), wanted(x.double())) <= 1e-6
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(layer(x), y)
            assert layer(x.bfloat16()).dtype == torch.bfloat16
        for dtype, tolerance in ((torch.bfloat16, 3e-2), (torch.float16, 5e-3)):
            low = copy.deepcopy(layer).to(dtype)(x.to(dtype))
            assert low.dtype == dtype
            assert relative(low.float(), y) <= tolerance


def test_compile_without_graph_breaks() -> None:
    torch._dynamo.reset()
    layer, x = make("compact").float(), signal(6, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.compile(layer, fullgraph=True, backend="eager")(x)
    assert relative(y, layer(x)) <= 1e-6


@pytest.mark.parametrize("form", ["masked", "stack"])
def test_an_empty_batch(form: str) -> None:
    layer = make(form)
    for steps in (1, 6, 20):
        y = layer(signal(steps, batch=0))
        assert y.shape == (0, 4, steps + 2)
        assert not any(g.any() for g in torch.autograd.grad(y.sum(), list(layer.parameters())))


def test_a_long_history_equals_the_dense_twin() -> None:
    layer = make("masked", 70, scale=0.02, groups=2)
    for steps in (30, 70, 110):
        x = signal(steps)
        dense.assert_same(layer(x), dense.causal(layer, x), [x, *layer.parameters()], 1e-10, 1e-10)


def test_a_report_tells_where_a_layer_is_the_convolution_no_more() -> None:
    model, x = nn.Sequential(nn.Conv1d(1, 1, 9, padding=64, dilation=8)), torch.randn(1, 1, 100)
    reason = swap(model, x, causal=True).layer("0").reason
    assert "looks back 64 steps, of which inputs of more than 100 steps show it 50" in reason
    assert "a sample of 128 steps" in reason
    restore(model)
    longer = torch.randn(1, 1, 500)
    wanted = model(longer)
    assert swap(model, torch.randn(1, 1, 128), causal=True).layer("0").reason == ""
    assert relative(model(longer), wanted) <= 1e-5


def test_triangular_takes_kernels_of_one_step() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Conv1d(3, 2, 3, padding=2))
    report = swap(model, torch.randn(1, 2, 9), causal="triangular")
    assert [row.swapped for row in report.layers] == [True, False]
    assert "starts at kernel size 1, not at 3" in report.layer("1").reason
