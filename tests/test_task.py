import torch
from smalltask import small_task
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from xdnas.tasks import Metric, Task


def test_a_task_is_three_sets_a_loss_and_a_metric() -> None:
    train, valid, test = (TensorDataset(part, part) for part in torch.randn(6, 1, 4).split(2))
    metric = Metric("squared error", lambda y, target: (y - target).square().flatten(1).mean(1))
    task = Task(train, valid, test, F.mse_loss, metric)
    assert (task.train, task.valid, task.test) == (train, valid, test)
    assert (task.loss, task.metric, task.name) == (F.mse_loss, metric, "own")
    assert Task(train, valid, test, F.mse_loss, metric, "mine", {"a": 1}).options == {"a": 1}


def test_the_default_recipe() -> None:
    task = small_task()
    assert task.recipe("Net") is task.recipes["Net"]
    assert task.recipe("another").optimizer == "adam"
