import dense
import pytest
import torch
from causal_cases import Case, case
from torch import Tensor

from xdnas import XD
from xdnas.causal import masked, windows
from xdnas.stepwise import Stepper


@pytest.mark.parametrize("history", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize(("groups", "gates"), [(1, True), (2, False)])
def test_steps_equal_the_whole_pass_at_every_length(history: int, groups: int, gates: bool) -> None:
    c = case(steps=history, length=history + 2, groups=groups, gates=gates)
    bias = torch.randn(6, dtype=torch.float64)
    with torch.no_grad():
        stepper = Stepper(*c[1:5], bias, groups)
        for steps in sorted({1, max(1, history - 1), history, history + 1, 3 * history + 2, 7 * history}):
            x = torch.randn(2, 4, steps, dtype=torch.float64)
            whole = windows(x, history, 2, lambda cut: masked(cut, c.K[: cut.shape[2] + 2], *_columns(c, cut)))
            state, outputs = stepper.start(2), []
            for t in range(steps):
                y, state = stepper.step(x[..., t], state)
                outputs.append(y)
            wanted = whole[..., :steps] + bias[:, None]
            torch.testing.assert_close(torch.stack(outputs, 2), wanted, rtol=1e-10, atol=1e-10)


def _columns(c: Case, cut: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    return c.L, c.W, c.M[:, : cut.shape[2]], c.groups


def test_a_state_has_constant_size_and_is_not_changed() -> None:
    with torch.no_grad():
        stepper = Stepper(*case(steps=4)[1:5])
        state = stepper.start(1)
        x = torch.randn(1, 4, dtype=torch.float64)
        for _ in range(30):
            kept = state.sums.clone()
            y, after = stepper.step(x, state)
            assert torch.equal(state.sums, kept)
            assert torch.equal(stepper.step(x, state)[0], y)
            assert after.sums.shape == kept.shape == (2, 1, 4, 8)
            state = after
    assert state.step == 30


def test_a_lost_number_is_forgotten_with_its_windows() -> None:
    with torch.no_grad():
        stepper = Stepper(*case(steps=6)[1:5])
        state = stepper.start(1)
        finite = []
        for t in range(20):
            x = torch.full((1, 4), float("nan") if t == 7 else 1.0, dtype=torch.float64)
            y, state = stepper.step(x, state)
            finite.append(bool(y.isfinite().all()))
    assert finite == [t < 7 or t >= 12 for t in range(20)]


def test_a_stepper_keeps_no_graph_and_no_history() -> None:
    layer = XD(3, 4, 3, 8, padding=2, causal=True)
    stepper = layer.stepper()
    state = stepper.start(2)
    size = state.sums.numel()
    for _ in range(50):
        y, state = stepper.step(torch.randn(2, 3), state)
        assert y.grad_fn is None
        assert state.sums.grad_fn is None
    assert state.sums.numel() == size


@pytest.mark.parametrize("history", [8, 100])
def test_a_layers_steps_equal_its_whole_pass(history: int) -> None:
    torch.manual_seed(0)
    layer = XD(2, 4, 3, history, padding=2, groups=2, causal=True, dtype=torch.float64)
    dense.perturb(layer, 0.05)
    x = torch.randn(2, 2, 2 * history + 3, dtype=torch.float64)
    stepper = layer.stepper()
    state, outputs = stepper.start(2), []
    for t in range(x.shape[2]):
        y, state = stepper.step(x[..., t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 2), layer(x)[..., : x.shape[2]], rtol=1e-10, atol=1e-10)
