"""The convolutional network for solution operators (Roberts et al. 2021, appendix; the FNO with convolutions)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PDENet(nn.Module):
    """Lift to `width` channels, four blocks norm(conv(x) + pointwise(x)), project to the output.

    Input (B, in_channels, *size) with 1 to 3 axes, output (B, out_channels, *size). Convolutions are circular, keep the
    size and have no bias. In one dimension with width 64 and kernel 17: 304,321 parameters.
    """

    def __init__(
        self,
        dimensions: int = 1,
        in_channels: int = 2,
        out_channels: int = 1,
        width: int = 64,
        kernel_size: int = 17,
    ) -> None:
        super().__init__()
        if dimensions not in (1, 2, 3):
            raise ValueError(f"PDENet: dimensions {dimensions} must be 1, 2 or 3")
        if kernel_size % 2 == 0:
            raise ValueError(f"PDENet: kernel_size {kernel_size} must be odd, so that it keeps the size")
        conv = CONVS[dimensions - 1]

        def mixer() -> nn.Module:
            return conv(width, width, kernel_size, padding=kernel_size // 2, padding_mode="circular", bias=False)

        self._layers(dimensions, in_channels, out_channels, width, mixer)

    def _layers(self, dimensions: int, inputs: int, outputs: int, width: int, mixer: Callable[[], nn.Module]) -> None:
        self.lift = nn.Linear(inputs, width)
        self.convs = nn.ModuleList(mixer() for _ in range(4))
        self.pointwise = nn.ModuleList(CONVS[dimensions - 1](width, width, 1) for _ in range(4))
        self.norms = nn.ModuleList(NORMS[dimensions - 1](width) for _ in range(4))
        self.project = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """A function on a grid to its image on the same grid."""
        x = _last(self.lift, x)
        last = len(self.convs) - 1
        for i, (conv, pointwise, norm) in enumerate(zip(self.convs, self.pointwise, self.norms, strict=True)):
            x = norm(conv(x) + pointwise(x))
            x = F.relu(x) if i < last else x
        return _last(self.project, x)


def _last(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer that acts on the last axis to the channels."""
    return torch.movedim(layer(torch.movedim(x, 1, -1)), -1, 1)
