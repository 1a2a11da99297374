"""Back to the convolutions."""

import pytest
import torch
from swapnet import Net, assert_same_state, state
from torch import Tensor, nn
from torch.nn.utils import parametrize

from xdnas.report import SwapError
from xdnas.restore import restore
from xdnas.swap import swap
from xdnas.xd import XD


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
