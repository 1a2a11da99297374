"""What training does to a model for a while only: modes, and gradients that nobody uses."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from xdnas.sample import untouched


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in training or evaluation mode; every module has its own mode again afterwards.

    In a model that is in training mode already, modules that were left in evaluation mode (a norm that shall keep its
    statistics) stay in it.
    """
    before = [(module, module.training) for module in model.modules()]
    if not (training and model.training):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextmanager
def without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Parameters that want gradients get none meanwhile."""
    wanting = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in wanting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)


def check_last_batch(model: nn.Module, inputs: Tensor, batch_size: int) -> None:
    """Refuse a batch of one sample for a batch norm that would see one value per channel; torch refuses it in the end.

    Args:
        model: it is run on one sample, which leaves no trace in it.
        inputs: all training inputs.
        batch_size: of training.

    Raises:
        ValueError: names the numbers and the layer.
    """
    if batch_size > 1 and len(inputs) % batch_size != 1:
        return
    with in_mode(model, True):
        norms = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm) and m.training}
    if not norms:
        return
    alone = _alone(model, norms, inputs[:1].to(next(model.parameters()).device))
    if alone:
        raise ValueError(
            f"fit: {len(inputs)} training samples in batches of {batch_size} make a batch of one sample, in which "
            f"{type(norms[alone[0]]).__name__} {alone[0]!r} has one value per channel; choose another batch_size in "
            "the task's Recipe or another number of samples"
        )


def _alone(model: nn.Module, norms: dict[str, _BatchNorm], sample: Tensor) -> list[str]:
    """Names of the norms that get one value per channel from a batch of one sample."""
    found: list[str] = []

    def watch(name: str, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and inputs[0].numel() == inputs[0].shape[1]:
            found.append(name)

    with untouched(model, sample), torch.no_grad(), ExitStack() as stack:
        for name, norm in norms.items():
            hook = norm.register_forward_pre_hook(lambda norm, inputs, name=name: watch(name, norm, inputs))
            stack.callback(hook.remove)
        model(sample)
    return found
