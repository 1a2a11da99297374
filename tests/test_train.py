import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smalltask import Net, net, small_task
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from xdnas.params import named_architecture_parameters, named_model_weights
from xdnas.search import train
from xdnas.swap import swap
from xdnas.tasks.optimizers import lr_factor, optimizers_of
from xdnas.tasks.savepoint import read_tensors
from xdnas.tasks.task import Recipe, Task
from xdnas.tasks.train import ArchSettings, Diverged, Epoch, evaluate, fit

ADAM = ArchSettings("adam", 1e-2)


def supernet(task: Task) -> nn.Module:
    model = net()
    swap(model, task.train[:2][0])
    return model


def run(
    model: nn.Module, task: Task, epochs: int = 4, settings: ArchSettings | None = ADAM, **more: Any
) -> list[Epoch]:
    return list(fit(model, task, task.recipe("Net"), epochs=epochs, settings=settings, seed=1, **more))


def outcome(epochs: list[Epoch]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(epoch), "seconds": 0} for epoch in epochs]


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_training_helps() -> None:
    task, model = small_task(), supernet(small_task())
    before = evaluate(model, task.valid, task.metric, 7)
    epochs = run(model, task, 6)
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert epochs[-1].valid < 0.8 * before
    assert epochs[-1].valid == evaluate(model, task.valid, task.metric, 10)
    assert epochs[-1].distance["0"]["K"] > 0


def test_evaluate_is_the_mean_and_keeps_the_mode() -> None:
    task, model = small_task(), net()
    model.train()
    value = evaluate(model, task.test, task.metric, 3)
    assert model.training
    x, y = task.test.tensors
    assert value == pytest.approx(task.metric.values(model.eval()(x), y).mean().item(), rel=1e-6)


def test_two_runs_agree_bit_for_bit() -> None:
    task = small_task()
    models = [supernet(task), supernet(task)]
    first = run(models[0], task)
    torch.rand(7)
    assert outcome(run(models[1], task)) == outcome(first)
    assert equal(*models)


def test_the_users_random_state_stays() -> None:
    state = torch.get_rng_state()
    run(net(), small_task(), 1, None)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("settings", [ADAM, ArchSettings("sgd", 0.1, 0.5, 1), None])
def test_a_resumed_run_is_the_same_run(settings: ArchSettings | None, tmp_path: Path) -> None:
    task, whole, path = small_task(), supernet(small_task()), tmp_path / "checkpoint.pt"
    expected = run(whole, task, settings=settings)
    started = fit(supernet(task), task, task.recipe("Net"), epochs=4, settings=settings, seed=1, checkpoint=path)
    for _ in range(2):
        next(started)
    started.close()  # type: ignore[attr-defined]
    resumed = supernet(task)
    got = run(resumed, task, settings=settings, checkpoint=path, resume=True)
    assert outcome(got) == outcome(expected)
    assert equal(resumed, whole)
    assert not list(tmp_path.glob(".*"))


def test_only_weights_move_during_warm_up_and_never_the_frozen_architecture() -> None:
    task = small_task()
    for settings, last in ((ArchSettings("adam", 1e-2, warmup=2), 2), (ArchSettings("sgd", 0.0), 4), (None, 4)):
        model = supernet(task)
        start = {name: value.detach().clone() for name, value in model.named_parameters()}
        for epoch in fit(model, task, task.recipe("Net"), epochs=4, settings=settings, seed=0):
            assert any(not torch.equal(value, start[name]) for name, value in named_model_weights(model))
            same = all(torch.equal(value, start[name]) for name, value in named_architecture_parameters(model))
            assert same == (epoch.number <= last)


def test_a_frozen_supernet_trains_as_its_backbone() -> None:
    """The same function and the same gradients give the same run; in float64 no rounding parts them."""
    task = small_task()
    sets: dict[str, Any] = {
        name: TensorDataset(*(t.double() for t in getattr(task, name).tensors)) for name in ("train", "valid")
    }
    task = dataclasses.replace(task, **sets)
    backbone, supernet = net().double(), net().double()
    swap(supernet, task.train[:2][0])
    runs = [run(model, task, epochs=5, settings=None) for model in (backbone, supernet)]
    for plain, frozen in zip(*runs, strict=True):
        assert frozen.train_loss == pytest.approx(plain.train_loss, rel=1e-8)
        assert frozen.valid == pytest.approx(plain.valid, rel=1e-8)


def test_architecture_has_its_own_optimizer_without_weight_decay() -> None:
    model = supernet(small_task())
    recipe = Recipe("sgd", 0.1, momentum=0.9, weight_decay=0.1, milestones=((0.5, 0.25),))
    (weights, architecture), schedules = optimizers_of(model, recipe, ArchSettings("sgd", 0.2, 0.5, 1), 4)
    assert [group["weight_decay"] for group in weights.param_groups + architecture.param_groups] == [0.1, 0.0]
    rates = []
    for _ in range(4):
        rates.append([optimizer.param_groups[0]["lr"] for optimizer in (weights, architecture)])
        for optimizer, schedule in zip((weights, architecture), schedules, strict=True):
            optimizer.step()
            schedule.step()
    np.testing.assert_allclose(rates, [[0.1, 0.0], [0.1, 0.2], [0.025, 0.05], [0.025, 0.05]])


def test_milestones_hit_whole_epochs() -> None:
    recipe = Recipe("adam", 1.0, milestones=((0.55, 0.5), (0.2, 0.8)))
    factors = [lr_factor(recipe, epoch, 100) for epoch in (0, 19, 20, 54, 55, 99)]
    assert factors == [1.0, 1.0, 0.8, 0.8, 0.5, 0.5]


@pytest.mark.parametrize("when", ["train", "valid"])
def test_a_diverged_run_says_so(when: str, tmp_path: Path) -> None:
    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        return (prediction - target).square().mean() * (float("nan") if when == "train" else 1.0)

    task = small_task(loss=loss)
    if when == "valid":
        task.valid.tensors[1].fill_(float("inf"))
    with pytest.raises(Diverged, match=r"epoch 1: loss .*nan"):
        run(net(), task, settings=None, checkpoint=tmp_path / "c.pt")
    assert not (tmp_path / "c.pt").exists()


def test_augmentation_is_drawn_from_the_seed() -> None:
    def shift(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.randn(x.shape, generator=generator, device=x.device)

    runs = [outcome(run(net(), small_task(augment=augment), 2, None)) for augment in (shift, shift, None)]
    assert runs[0] == runs[1] != runs[2]


def test_tensorboard_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    task = small_task()
    epochs = run(supernet(task), task, 2, log=tmp_path)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"loss", "validation relative L2", "distance/0/K", "distance/3/M"} <= set(events.Tags()["scalars"])
    values = [(event.step, event.value) for event in events.Scalars("validation relative L2")]
    assert values == [(epoch.number, pytest.approx(epoch.valid)) for epoch in epochs]


def test_train_writes_a_run_folder_and_its_best_model_comes_back(tmp_path: Path) -> None:
    task, out = small_task(), tmp_path / "run"
    result = train(task, net(), epochs=3, settings=ADAM, out=out, progress=False)
    assert not result.diverged
    assert len(result.valid) == 3
    assert (out / "config.json").is_file()
    own = out / "trials" / "xd-0"
    rows = [json.loads(line) for line in (own / "epochs.jsonl").read_text().splitlines()]
    assert [row["valid"] for row in rows] == result.valid
    assert set(rows[0]) == {"epoch", "train_loss", "valid", "seconds", "distance"}
    assert json.loads((own / "result.json").read_text())["status"] == "finished"
    assert list(own.glob("events.out.tfevents*"))
    model = net(5)
    swap(model, task.train[:2][0])
    model.load_state_dict(read_tensors(out / "best" / "xd.pt"))
    assert evaluate(model, task.test, task.metric, 10) == result.test
    arrays = np.load(out / "predictions.npz")
    assert {name: arrays[name].shape for name in arrays} == dict.fromkeys(("x", "truth", "xd"), (4, 1, 16))


def test_train_resumes_and_is_the_same(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    calls = 0

    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise StopError
        return (prediction - target).square().mean()

    task = small_task(loss=loss)
    with pytest.raises(StopError):
        train(task, net(), epochs=4, settings=ADAM, out=tmp_path / "a", progress=False)
    resumed = train(task, net(), epochs=4, settings=ADAM, out=tmp_path / "a", resume=True, progress=False)
    whole = train(task, net(), epochs=4, settings=ADAM, out=tmp_path / "b", progress=False)
    assert (resumed.valid, resumed.test) == (whole.valid, whole.test)
    again = train(task, net(), epochs=4, settings=ADAM, out=tmp_path / "a", resume=True, progress=False)
    assert (again.valid, again.test) == (whole.valid, whole.test)


def test_train_tells_a_diverged_run(tmp_path: Path) -> None:
    task = small_task(loss=lambda prediction, target: (prediction - target).mean() * float("nan"))
    result = train(task, net(), epochs=2, out=tmp_path / "run", progress=False)
    assert result.diverged
    assert np.isnan(result.test)
    entry = json.loads((tmp_path / "run" / "results.json").read_text())["methods"][0]
    assert entry["test"] is None
    assert entry["diverged"] == 1


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_train_starts_from_a_checkpoint(suffix: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    trained = net(9)
    path = tmp_path / f"start.{suffix}"
    if suffix == "pt":
        torch.save(trained.state_dict(), path)
    else:
        save_file(trained.state_dict(), path)
    task = small_task()
    options: dict[str, Any] = {"epochs": 1, "settings": ADAM, "progress": False}
    started = train(task, net(), start=path, out=tmp_path / "a", **options)
    assert started.valid == train(task, trained, out=tmp_path / "b", **options).valid
    assert started.valid != train(task, net(), out=tmp_path / "c", **options).valid


def test_full_disk_gives_one_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from smalltask import net, small_task
from xdnas.search import train
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
print(train(small_task(), net(), epochs=2, out={str(tmp_path / "run")!r}, resume=limit > 2000, progress=False).valid)
"""
    command = [sys.executable, "-c", script]
    full = subprocess.run([*command, "2000"], capture_output=True, text=True, check=False)
    assert full.returncode == 1
    assert "OSError: [Errno 27] File too large" in full.stderr.splitlines()[-1]
    freed = subprocess.run([*command, str(2**30)], capture_output=True, text=True, check=True)
    expected = train(small_task(), net(), epochs=2, out=tmp_path / "other", progress=False)
    assert json.loads(freed.stdout) == pytest.approx(expected.valid, rel=1e-5)


def test_own_network_and_task_are_not_changed(tmp_path: Path) -> None:
    model, task = net(), small_task()
    before, x = {name: value.clone() for name, value in model.state_dict().items()}, task.train.tensors[0].clone()
    train(task, model, epochs=1, settings=ADAM, out=tmp_path / "run", progress=False)
    assert type(model) is Net
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(task.train.tensors[0], x)
