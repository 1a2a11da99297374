"""ResNet for 32 x 32 images (He et al. 2016, section 4.2), with parameter-free shortcuts (option A)."""

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which a wider block subsamples and fills up with zero channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.missing = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        before = self.missing // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.missing - before))
        return F.relu(y + shortcut)


class ResNet(nn.Module):
    """Three stages of `blocks` blocks, 16 `width` to 64 `width` channels; depth 6 blocks + 2.

    Input (B, in_channels, H, W), output logits (B, classes). Kaiming-normal weights.
    """

    def __init__(self, blocks: int = 3, classes: int = 10, in_channels: int = 3, width: int = 1) -> None:
        super().__init__()
        channels = [16 * width, 32 * width, 64 * width]
        self.conv1 = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.layer1 = self._stage(channels[0], channels[0], blocks, 1)
        self.layer2 = self._stage(channels[0], channels[1], blocks, 2)
        self.layer3 = self._stage(channels[1], channels[2], blocks, 2)
        self.linear = nn.Linear(channels[2], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        first = Block(inputs, outputs, stride)
        return nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def resnet20(classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-20: 269,722 parameters for 10 classes."""
    return ResNet(3, classes, in_channels)
