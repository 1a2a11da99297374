"""LeNet for 32 x 32 colour images (LeCun et al. 1998, in the size that Roberts et al. 2021 use)."""

from torch import Tensor, nn
from torch.nn import functional as F


class LeNet(nn.Module):
    """Two 5 x 5 convolutions with max pooling, three linear layers; 62,006 parameters for 10 classes.

    Input (B, in_channels, 32, 32), output logits (B, classes).
    """

    def __init__(self, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits
