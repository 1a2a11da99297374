import subprocess
import sys

import pytest
import torch

from xdnas.backbones import BACKBONES, build


@pytest.mark.parametrize(
    ("name", "parameters", "shape"),
    [
        ("lenet", 62_006, (3, 32, 32)),
        ("resnet20", 269_722, (3, 32, 32)),
        ("pde", 304_321, (2, 256)),
        ("fno", 304_321 + 4 * 64 * 64 * (2 * 16 - 17), (2, 256)),
    ],
)
def test_parameters_are_those_of_the_paper(name: str, parameters: int, shape: tuple[int, ...]) -> None:
    model = build(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    y = model(torch.randn(2, *shape))
    assert y.shape == ((2, 10) if len(shape) == 3 else (2, 1, 256))


@pytest.mark.parametrize("name", list(BACKBONES))
def test_fixed_by_the_seed(name: str) -> None:
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return list(build(name).state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("name", ["pde", "fno"])
def test_pde_networks_commute_with_shifts(name: str, dimensions: int) -> None:
    """Circular convolutions and spectral layers alike: a shifted function has the shifted image."""
    extra = {"kernel_size": 3} if name == "pde" else {"modes": 3}
    model = build(name, dimensions=dimensions, width=6, **extra).eval().double()
    x = torch.randn(2, 2, *(8, 6, 10)[:dimensions], dtype=torch.float64)
    axes = tuple(range(2, x.dim()))
    y, shifted = model(x), model(x.roll((2,) * dimensions, axes))
    torch.testing.assert_close(shifted, y.roll((2,) * dimensions, axes))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_parameters_in_more_dimensions(dimensions: int) -> None:
    """Darcy and Navier-Stokes in the paper: 701,185 and 1,171,337."""
    width, kernel, channels, wanted = ((64, 17, 2, 304_321), (32, 13, 3, 701_185), (20, 9, 13, 1_171_337))[
        dimensions - 1
    ]
    model = build("pde", dimensions=dimensions, width=width, kernel_size=kernel, in_channels=channels)
    assert sum(p.numel() for p in model.parameters()) == wanted


def test_resnet_shortcuts_have_no_parameters_and_convolutions_are_kaiming_normal() -> None:
    torch.manual_seed(0)
    model = build("resnet20")
    convs = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convs) == 19
    for conv in convs:
        assert conv.bias is None
        assert conv.kernel_size == (3, 3)
        fan_in = 9 * conv.in_channels
        assert float(conv.weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.15)


def test_a_grid_too_coarse_for_the_modes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(16,\) modes need a grid of twice that per axis, got \(31,\)"):
        build("fno")(torch.randn(2, 2, 31))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_spectral_layer_with_all_its_modes_on_one_wave(dimensions: int) -> None:
    """A wave below the cut is multiplied by its weight, one above it is dropped."""
    from xdnas.backbones.fno import SpectralConv

    layer = SpectralConv(1, 1, (2,) * dimensions).double()
    n = 12
    grid = torch.arange(n, dtype=torch.float64) * 2 * torch.pi / n
    along = (1,) * (dimensions - 1) + (n,)
    wave = torch.cos(grid).view(along).expand((n,) * dimensions)
    gain = torch.view_as_complex(layer.weight)[0, 0, 0][(0,) * (dimensions - 1) + (1,)]
    wanted = (gain * torch.exp(1j * grid)).real.view(along).expand((n,) * dimensions)
    torch.testing.assert_close(layer(wave[None, None])[0, 0], wanted)
    high = torch.cos(3 * grid).view(along).expand((n,) * dimensions)
    assert layer(high[None, None]).abs().max() < 1e-14


@pytest.mark.parametrize("name", ["backbones", "tasks", "search"])
def test_no_import_under_a_bare_name(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"import xdnas.{name}, not {name}" in done.stderr
