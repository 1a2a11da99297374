"""Losses and metrics; a metric gives one value per sample, lower is better, and its mean is reported."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Metric:
    """A measure of a prediction.

    Attributes:
        name: as tables and plots show it.
        values: (prediction, target), both with a batch axis first, to one value per sample (N,); lower is better.
    """

    name: str
    values: Callable[[Tensor, Tensor], Tensor]


def relative_l2(prediction: Tensor, target: Tensor) -> Tensor:
    """||prediction - target|| / ||target|| of every sample over all its entries: (N, ...) to (N,)."""
    error: Tensor = (prediction - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)
    return error


def mean_relative_l2(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of the relative L2 error (the loss of Li et al. 2021, divided by the batch size)."""
    return relative_l2(prediction, target).mean()


def misclassified(logits: Tensor, labels: Tensor) -> Tensor:
    """1 for every sample whose largest logit is not its label: (N, classes), (N,) to (N,)."""
    return (logits.argmax(1) != labels).to(logits.dtype)


RELATIVE_L2 = Metric("relative L2", relative_l2)
ERROR = Metric("error", misclassified)
cross_entropy = F.cross_entropy
