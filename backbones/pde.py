"""The convolutional network for solution operators (Roberts et al. 2021, appendix; the FNO with convolutions)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class OperatorNet(nn.Module):
    """Lift to `width` channels, four blocks norm(mix(x) + pointwise(x)), project to the output.

    Input (B, in_channels, *size) with 1 to 3 axes, output (B, out_channels, *size). What mixes the points of the grid
    is made by `mixer`, a layer from `width` to `width` channels that keeps the size.
    """

    def __init__(
        self, dimensions: int, in_channels: int, out_channels: int, width: int, mixer: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        if dimensions not in (1, 2, 3):
            raise ValueError(f"{type(self).__name__}: dimensions {dimensions} must be 1, 2 or 3")
        self.lift = nn.Linear(in_channels, width)
        self.convs = nn.ModuleList(mixer() for _ in range(4))
        self.pointwise = nn.ModuleList(CONVS[dimensions - 1](width, width, 1) for _ in range(4))
        self.norms = nn.ModuleList(NORMS[dimensions - 1](width) for _ in range(4))
        self.project = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """A function on a grid to its image on the same grid."""
        x = _on_channels(self.lift, x)
        last = len(self.convs) - 1
        for i, (conv, pointwise, norm) in enumerate(zip(self.convs, self.pointwise, self.norms, strict=True)):
            x = norm(conv(x) + pointwise(x))
            x = F.relu(x) if i < last else x
        return _on_channels(self.project, x)


class PDENet(OperatorNet):
    """The network whose mixers are circular convolutions without bias: 1-d, width 64, kernel 17 is 304,321 parameters.

    Args:
        dimensions: axes of the grid, 1 to 3.
        in_channels, out_channels: of the functions, coordinates included.
        width: channels inside.
        kernel_size: odd, the same along every axis; the padding keeps the size.
    """

    def __init__(
        self, dimensions: int = 1, in_channels: int = 2, out_channels: int = 1, width: int = 64, kernel_size: int = 17
    ) -> None:
        if kernel_size % 2 == 0:
            raise ValueError(f"PDENet: kernel_size {kernel_size} must be odd, so that it keeps the size")

        def conv() -> nn.Module:
            kind, padding = CONVS[dimensions - 1], kernel_size // 2
            return kind(width, width, kernel_size, padding=padding, padding_mode="circular", bias=False)

        super().__init__(dimensions, in_channels, out_channels, width, conv)


def _on_channels(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer that acts on the last axis to the channels."""
    return torch.movedim(layer(torch.movedim(x, 1, -1)), -1, 1)
