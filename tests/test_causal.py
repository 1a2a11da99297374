import time
from statistics import median

import causal_cases
import pytest
import torch
from causal_cases import Case, case
from torch import Tensor, nn

from xdnas.causal import causal_stack, lower_matrices, masked, stacked, windows

CASES = [
    case(),
    case(gates=False),
    case(groups=2),
    case(groups=2, gates=False, length=7),
    case(inputs=4, outputs=4, groups=4, steps=9, length=5),
    case(batch=1, inputs=1, outputs=1, steps=1, length=3, frequencies=2, taps=1),
]


def gradients(y: Tensor, c: Case) -> tuple[Tensor, ...]:
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    return torch.autograd.grad((y * cotangent).sum(), c[:5])


@pytest.mark.parametrize("c", CASES)
def test_masked_and_stacked_equal_the_masked_matrix(c: Case) -> None:
    wanted = causal_cases.dense(*c)
    by_dense = gradients(wanted, c)
    for form in (masked, stacked):
        y = form(*c)
        torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients(y, c), by_dense, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("gates", [True, False])
def test_gradients_to_second_order_forward_and_batched(gates: bool) -> None:
    tensors = case(1, 2, 2, 3, 4, 3, 2, groups=2, gates=gates)[:5]

    def operation(*given: Tensor) -> Tensor:
        return masked(*given, 2)  # type: ignore[arg-type, call-arg]

    assert torch.autograd.gradcheck(operation, tensors, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(operation, tensors)


def test_per_example_values_and_a_compiled_graph() -> None:
    c = case(batch=3)
    each = torch.func.vmap(lambda x: masked(x[None], *c[1:])[0])(c.x)
    torch.testing.assert_close(each, masked(*c))
    compiled = torch.compile(masked, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(*c), c), gradients(masked(*c), c))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("future", [1e30, 3e38, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(("steps", "batch"), [(7, 2), (70, 1), (161, 3)])
def test_the_future_changes_no_bit(dtype: torch.dtype, future: float, steps: int, batch: int) -> None:
    c = case(batch, 8, 6, steps, steps + 2, steps + 3, groups=2, dtype=dtype)
    y = masked(*c)
    for step in (1, steps // 2, steps - 1):
        x = c.x.detach().clone()
        x[:, :, step:] = future
        assert torch.equal(masked(x, *c[1:])[..., :step], y[..., :step])


def test_what_is_not_finite_is_seen_from_its_step_on_in_its_group() -> None:
    c = case(groups=2)
    x = c.x.detach().clone()
    x[0, 1, 4] = float("nan")
    lost = masked(x, *c[1:]).isnan()
    assert lost[0, :3, 4:].all()
    assert lost.sum() == 3 * 5


def test_no_gradient_reaches_the_future() -> None:
    c = case()
    for step in range(7):
        (by_x,) = torch.autograd.grad(masked(*c)[..., step].sum(), c.x)
        assert (by_x[..., step + 1 :] == 0).all()
        assert (by_x[..., : step + 1] != 0).all()


def test_taps_are_a_convolution_where_the_matrices_are_fourier_transforms() -> None:
    n, k, dilation, steps = 16, 3, 2, 10
    tail = (k - 1) * dilation
    fourier = torch.fft.fft(torch.eye(n, dtype=torch.complex128), dim=0)
    places = [tail - a * dilation for a in range(k)]
    conv = nn.Conv1d(4, 6, k, padding=tail, dilation=dilation, groups=2, bias=False, dtype=torch.float64)
    weights = conv.weight.detach().permute(2, 1, 0)
    x = torch.randn(2, 4, steps, dtype=torch.float64)
    y = masked(x, fourier.conj()[: steps + tail] / n, fourier[:, places], weights, fourier[:, :steps], 2)
    torch.testing.assert_close(y, conv(x), rtol=1e-12, atol=1e-12)


def test_matrices_are_lower_triangular() -> None:
    c = case()
    lower = lower_matrices(c.K, c.L, c.M)
    assert lower.shape == (9, 3, 7)
    assert all(lower[u, :, s].any() == (s <= u) for u in range(9) for s in range(7))


@pytest.mark.parametrize("history", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("tail", [0, 1, 5])
def test_each_output_comes_from_the_window_of_the_rule(history: int, tail: int) -> None:
    """The function tells which step its window starts at and where in it an output stands."""

    def where(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[2] + tail, dtype=x.dtype).expand(len(x), 1, -1)
        return torch.cat((x[:, :1, :1].expand(place.shape), place), 1)

    h = max(1, history // 2)
    for steps in range(1, 4 * history + 3):
        x = torch.arange(steps, dtype=torch.float64)[None, None] + 1
        begin, place = windows(x, history, tail, where)[0]
        assert len(place) == steps + tail
        for t in range(steps + tail):
            p = 0 if t < history or steps <= history else (t - (history - h)) // h
            assert place[t] == t - p * h
            assert begin[t] == (p * h + 1 if p * h < steps else 0)
            assert t < history or steps <= history or history - h <= place[t] < history


@pytest.mark.parametrize(("history", "k", "dilation"), [(8, 5, 1), (8, 3, 2), (9, 2, 5), (1, 1, 3), (2, 2, 1)])
def test_a_convolution_within_a_half_window_has_no_seams(history: int, k: int, dilation: int) -> None:
    tail = (k - 1) * dilation
    conv = nn.Conv1d(2, 3, k, padding=tail, dilation=dilation, dtype=torch.float64)
    for steps in (1, max(1, history - 1), history, history + 1, 3 * history + 2, 5 * history):
        x = torch.randn(2, 2, steps, dtype=torch.float64)
        torch.testing.assert_close(windows(x, history, tail, conv), conv(x), rtol=1e-12, atol=1e-12)


def test_windows_go_through_as_one_batch_and_gradients_come_back() -> None:
    c = case(steps=6, length=8)
    x = torch.randn(2, 4, 23, dtype=torch.float64, requires_grad=True)
    calls: list[tuple[int, ...]] = []

    def function(cut: Tensor) -> Tensor:
        calls.append(tuple(cut.shape))
        return masked(cut, *c[1:])

    y = windows(x, 6, 2, function)
    assert calls == [(2 * 8, 4, 6)]
    (by_x,) = torch.autograd.grad(y[..., 15].sum(), x)
    seen = (by_x != 0).any(0).any(0)
    assert seen.tolist() == [12 <= s <= 15 for s in range(23)]


@pytest.mark.parametrize("history", [1, 4, 12])
def test_the_stack_of_a_model_is_its_last_step_on_every_window(history: int) -> None:
    model = nn.Sequential(nn.Conv1d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv1d(5, 2, 1)).double()
    x = torch.randn(2, 3, 9, dtype=torch.float64)
    y = causal_stack(model, x, history)
    assert y.shape == (2, 2, 9)
    for t in range(9):
        window = torch.zeros(2, 3, history, dtype=torch.float64)
        for back in range(min(history, t + 1)):
            window[..., history - 1 - back] = x[..., t - back]
        torch.testing.assert_close(y[..., t], model(window)[..., -1], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "channels", "steps", "frequencies"), [(1, 150, 160, 180), (16, 32, 64, 72)])
def test_masked_takes_a_fraction_of_the_time_and_memory_of_the_stack(
    batch: int, channels: int, steps: int, frequencies: int
) -> None:
    c = case(batch, channels, channels, steps, steps, frequencies, 4, dtype=torch.float32)
    seconds: dict[str, list[float]] = {"masked": [], "stacked": []}
    for _ in range(3):
        for name, form in (("masked", masked), ("stacked", stacked)):
            start = time.perf_counter()
            gradients(form(*c), c)
            seconds[name].append(time.perf_counter() - start)
    assert median(seconds["masked"]) < median(seconds["stacked"]) / 5
    peaks = [causal_cases.peak_bytes(lambda form=form: gradients(form(*c), c)) for form in (masked, stacked)]  # type: ignore[misc]
    assert peaks[0] < peaks[1] / 10
