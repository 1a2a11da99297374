"""Training networks and data of a user's own: what odd ones do, and what is left as it was."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from smalltask import net, small_task
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from xdnas.params import architecture_parameters
from xdnas.search import train
from xdnas.swap import swap
from xdnas.tasks import Metric, Recipe, Task
from xdnas.tasks.metrics import ERROR
from xdnas.tasks.train import ArchSettings, Epoch, evaluate, fit

ADAM = ArchSettings("adam", 1e-2)


def run(model: nn.Module, task: Task, settings: ArchSettings | None = None, **changes: Any) -> list[Epoch]:
    recipe = dataclasses.replace(task.recipe("Net"), **changes)
    return list(fit(model, task, recipe, epochs=2, settings=settings, seed=0))


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Conv1d(2, 1, 3, padding=1))


@pytest.mark.parametrize("settings", [None, ArchSettings("sgd", 0.0)])
def test_a_frozen_architecture_gets_no_gradient_and_stays_trainable(settings: ArchSettings | None) -> None:
    task, model = small_task(), net()
    swap(model, task.train[:2][0])
    first, *others = architecture_parameters(model)
    first.requires_grad_(False)
    for _ in fit(model, task, task.recipe("Net"), epochs=2, settings=settings):
        assert [parameter.grad for parameter in (first, *others)] == [None] * (1 + len(others))
        assert [parameter.requires_grad for parameter in (first, *others)] == [False] + [True] * len(others)


def test_a_norm_left_in_evaluation_mode_stays_there() -> None:
    model = normed().train()
    model[1].eval()
    before = {name: value.clone() for name, value in model[1].named_buffers()}
    run(model, small_task())
    assert modes(model) == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model[1].named_buffers())


def test_a_network_in_evaluation_mode_is_trained_and_given_back_in_it() -> None:
    model = normed().eval()
    run(model, small_task())
    assert not any(modes(model))
    assert int(model[1].get_buffer("num_batches_tracked")) == 6


def test_modes_are_as_before_after_an_error() -> None:
    def broken(prediction: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError("broken")

    model = normed().train()
    model[1].eval()
    for task in (small_task(loss=broken), small_task(metric=Metric("broken", broken))):
        with pytest.raises(RuntimeError, match="broken"):
            run(model, task)
        assert modes(model) == [True, True, False, True]


def test_tokens_stay_whole_numbers(tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.conv = nn.Embedding(7, 4), nn.Conv1d(4, 3, 3, padding=1)

        def forward(self, tokens: Tensor) -> Tensor:
            y: Tensor = self.conv(self.table(tokens).movedim(-1, 1)).mean(-1)
            return y

    tokens = torch.randint(0, 7, (30, 8), generator=torch.Generator().manual_seed(0))
    parts = [TensorDataset(part, part[:, 0] % 3) for part in tokens.split(10)]
    task = Task(parts[0], parts[1], parts[2], nn.functional.cross_entropy, ERROR)
    result = train(task, Words(), epochs=2, settings=ADAM, out=tmp_path / "run", progress=False)
    assert len(result.valid) == 2


@pytest.mark.parametrize("batch_size", [7, 29, 30, 31])
def test_any_batch_size_sees_every_sample(batch_size: int) -> None:
    seen: list[Tensor] = []

    def note(x: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(x)
        return x

    run(net(), task := small_task(augment=note), batch_size=batch_size)
    for epoch in torch.cat(seen).split(30):
        assert torch.equal(epoch.sum((1, 2)).sort().values, task.train.tensors[0].sum((1, 2)).sort().values)


def flat() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Unflatten(1, (1, 16)))


@pytest.mark.parametrize("batch_size", [1, 29])
def test_a_last_batch_of_one_that_a_norm_cannot_take_is_told_at_once(batch_size: int) -> None:
    model, task = flat(), small_task()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message = (
        rf"^fit: 30 training samples in batches of {batch_size} make a batch of one sample, in which BatchNorm1d '2' "
        r"has one value per channel; choose another batch_size in the task's Recipe or another number of samples$"
    )
    with pytest.raises(ValueError, match=message):
        fit(model, task, Recipe("adam", 1e-3, batch_size=batch_size), epochs=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(modes(model))


def test_a_last_batch_of_one_that_a_norm_can_take_is_trained_on() -> None:
    assert len(run(normed().train(), small_task(), batch_size=29)) == 2
    at_rest = flat().train()
    at_rest[2].eval()
    assert len(run(at_rest, small_task(), batch_size=29)) == 2


def test_losses_and_metrics_of_another_shape_are_refused() -> None:
    task = small_task()
    mean = Metric("mean", lambda y, target: (y - target).square().mean())
    with pytest.raises(ValueError, match=r"metric 'mean' gave shape \(\) for 3 samples; it must give .* shape \(3,\)"):
        evaluate(net(), task.test, mean, 3)
    with pytest.raises(ValueError, match=r"the task's loss gave shape \(10, 1, 16\); it must be one number"):
        run(net(), small_task(loss=lambda y, target: (y - target).square()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_model_on_a_gpu_is_trained_there_and_resumes(tmp_path: Path) -> None:
    def shift(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + 0.01 * torch.randn(x.shape, generator=generator, device=x.device)

    task, models = small_task(augment=shift), [net().cuda(), net().cuda()]
    for model in models:
        swap(model, task.train[:2][0].cuda())
    state = torch.cuda.get_rng_state()
    options: dict[str, Any] = {"epochs": 3, "settings": ADAM, "checkpoint": tmp_path / "c.pt"}
    started = fit(models[0], task, task.recipe("Net"), **options)
    next(started)
    resumed = list(fit(models[1], task, task.recipe("Net"), **options, resume=True))
    for expected, got in zip(started, resumed[1:], strict=True):
        assert got.valid == pytest.approx(expected.valid, rel=1e-3)
    assert torch.equal(torch.cuda.get_rng_state(), state)
