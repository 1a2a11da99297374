"""The parts of a search, without Ray's processes."""

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.tune.schedulers import TrialScheduler
from searching import SETTINGS, setup, valids
from smalltask import net, small_task

from xdnas.search import tune
from xdnas.search.halving import Halving
from xdnas.search.identity import is_registered
from xdnas.search.runfolder import (
    add_trials,
    best_trial,
    claimed,
    read_json,
    read_trial,
    read_trials,
    trial_folder,
    write_epochs,
    write_json,
    write_status,
)
from xdnas.search.scratch import own_folder
from xdnas.search.space import arch_settings, architecture_settings, weight_settings
from xdnas.search.trial import run_trial
from xdnas.tasks.metrics import RELATIVE_L2, Metric
from xdnas.tasks.task import Recipe
from xdnas.tasks.train import Epoch

RECIPE = Recipe("adam", 1e-3, arch_optimizer="sgd", arch_lr=0.3, arch_momentum=0.5, arch_warmup=0.9)


def test_settings_are_drawn_from_the_seed_and_the_recipe_comes_first() -> None:
    weights = weight_settings(RECIPE, 20, 0, "backbone")
    assert weights == weight_settings(RECIPE, 20, 0, "backbone") != weight_settings(RECIPE, 20, 1, "backbone")
    assert weights[0] == {"lr": 1e-3}
    assert all(2e-4 <= values["lr"] <= 5e-3 for values in weights)
    drawn = architecture_settings(RECIPE, 40, 0, 8, 2e-3)
    assert drawn[0] == {"lr": 2e-3, "arch_optimizer": "sgd", "arch_lr": 0.3, "arch_momentum": 0.5, "arch_warmup": 7}
    assert {values["arch_optimizer"] for values in drawn} == {"sgd", "adam"}
    assert all(values["lr"] == 2e-3 and 0 <= values["arch_warmup"] < 8 for values in drawn)
    assert all(arch_settings(values) is not None for values in drawn)
    assert arch_settings(weights[0]) is None


def test_the_best_trial_is_finished_and_did_not_diverge(tmp_path: Path) -> None:
    names = add_trials(tmp_path, "xd", [{"lr": 1.0}] * 5)
    courses = {"finished": ([0.1, 0.5], [0.9, 0.4]), "stopped": ([0.01],), "diverged": ([0.02],), "": ([0.03],)}
    rest = iter(names)
    for status, runs in courses.items():
        for run in runs:
            own = trial_folder(tmp_path, next(rest))
            write_epochs(own, [Epoch(i + 1, 1.0, valid, 1.0) for i, valid in enumerate(run)])
            if status:
                write_status(own, status)
    best = best_trial(tmp_path, "xd")
    assert best is not None
    assert best.name == "xd-1"
    assert [trial.status for trial in read_trials(tmp_path, "xd")] == [
        "finished",
        "finished",
        "stopped",
        "diverged",
        "",
    ]
    assert best_trial(tmp_path, "fno") is None


def test_only_one_process_works_in_a_folder(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(BlockingIOError, match="in use by another process"), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass


def test_a_task_of_ones_own_is_not_taken_for_a_registered_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import xdnas.tasks

    task = small_task()
    assert not is_registered(task)
    monkeypatch.setitem(xdnas.tasks.TASKS, "small", lambda **_: small_task())
    monkeypatch.setattr(xdnas.tasks, "load", lambda name, **_: small_task())
    assert is_registered(task)
    task.train.tensors[0][0] += 1
    assert not is_registered(task)


def test_a_trial_killed_at_any_write_continues_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_task()
    run = setup(tmp_path / "run", task)
    names = add_trials(run.folder, "xd", [SETTINGS] * 8)
    list(run_trial(run, task, names[0]))
    whole = trial_folder(run.folder, names[0])
    # 3 epochs of 2 files, and the result
    for number, name in enumerate(names[1:]):
        killed = trial_folder(run.folder, name)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying(number))
            with pytest.raises(KeyboardInterrupt):
                list(run_trial(run, task, name))
        assert not (killed / "result.json").exists()
        (killed / ".checkpoint.pt-torn").write_bytes(b"PK")
        list(run_trial(run, task, name))
        assert same(torch.load(killed / "checkpoint.pt"), torch.load(whole / "checkpoint.pt"))
        assert valids(run.folder, name) == valids(run.folder, names[0])
        assert read_trial(killed).status == "finished"
        assert not (killed / ".checkpoint.pt-torn").exists()


def dying(number: int) -> Callable[..., None]:
    """An os.replace that is killed instead of moving the file of this number."""
    numbers, move = itertools.count(), os.replace

    def replace(source: Path, target: Path) -> None:
        if next(numbers) == number:
            raise KeyboardInterrupt
        move(source, target)

    return replace


def same(one: Any, other: Any) -> bool:
    """Whether two checkpoints hold the same; seconds differ between any two runs."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one if key != "seconds")
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def test_a_network_of_ones_own_is_checked_on_resuming(tmp_path: Path) -> None:
    task = small_task()
    setup(tmp_path / "run", task)
    setup(tmp_path / "run", task, resume=True)
    with pytest.raises(ValueError, match=r"holds another run.*: weights: '.*' then, .*Seed torch"):
        setup(tmp_path / "run", task, resume=True, backbone=net(1))
    other = net()
    other[2] = torch.nn.Dropout(0.5)
    with pytest.raises(ValueError, match=r"holds another run.*: layers: "):
        setup(tmp_path / "run", task, resume=True, backbone=other)


def test_a_network_with_a_start_may_have_any_weights(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "start.pt")
    task = small_task()
    setup(tmp_path / "run", task, start=tmp_path / "start.pt")
    setup(tmp_path / "run", task, start=tmp_path / "start.pt", resume=True, backbone=net(1))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"loss": torch.nn.functional.l1_loss}, "loss"),
        ({"metric": Metric("other", RELATIVE_L2.values)}, "metric"),
        ({"recipes": {"Net": RECIPE}}, "recipes"),
    ],
)
def test_a_task_of_ones_own_is_checked_on_resuming(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    setup(tmp_path / "run", small_task())
    with pytest.raises(ValueError, match=rf"holds another run.*: {key}: "):
        setup(tmp_path / "run", small_task(**changes), resume=True)


def test_a_run_may_go_on_on_another_device(tmp_path: Path) -> None:
    folder = setup(tmp_path / "run", small_task()).folder
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "device": "cuda"})
    assert setup(folder, small_task(), resume=True, device="cpu").device == "cpu"


def test_trials_that_ended_before_count_for_early_stopping(tmp_path: Path) -> None:
    names = add_trials(tmp_path, "xd", [SETTINGS] * 3)
    for name, valid in zip(names, (0.1, 0.2), strict=False):
        write_epochs(trial_folder(tmp_path, name), [Epoch(i + 1, 1.0, valid, 1.0) for i in range(4)])
        write_status(trial_folder(tmp_path, name), "finished")
    halving = Halving(tmp_path, 4, early_stopping=True, lines=False)
    trial: Any = SimpleNamespace(trial_id="a", config={"trial": names[2]})
    halving.on_trial_add(None, trial)
    assert halving.on_trial_result(None, trial, {"epoch": 1, "valid": 0.9}) == TrialScheduler.CONTINUE
    assert halving.on_trial_result(None, trial, {"epoch": 2, "valid": 0.9}) == TrialScheduler.STOP
    assert read_trial(trial_folder(tmp_path, names[2])).status == "stopped"


def test_folders_that_killed_processes_left_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path(tempfile.mkdtemp(dir="/tmp", prefix="t"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    # a user without a name, as in a container
    monkeypatch.setattr(Path, "owner", lambda self: (_ for _ in ()).throw(KeyError("uid not found")))
    (short / "xdnas-left").mkdir()
    (short / "xdnas-left" / "lock").touch()
    (short / "xdnas-new").mkdir()
    (short / "xdnas-file").touch()
    # as seen from another container: no such process
    monkeypatch.setattr(os, "kill", lambda *_: (_ for _ in ()).throw(ProcessLookupError()))
    with own_folder() as first, own_folder() as second:
        assert first.is_dir()
        assert first != second
        assert {path.name for path in short.iterdir()} == {first.name, second.name, "xdnas-new", "xdnas-file"}
    assert {path.name for path in short.iterdir()} == {"xdnas-new", "xdnas-file"}
    shutil.rmtree(short)


@pytest.mark.parametrize("started", [False, True])
def test_it_is_told_when_no_worker_takes_a_trial(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "_PATIENCE", 0.05)
    (name,) = add_trials(tmp_path, "xd", [SETTINGS])
    (tmp_path / "session_latest" / "logs").mkdir(parents=True)
    if started:
        (trial_folder(tmp_path, name) / "started").touch()
    with tune._waiting([name], tmp_path, tmp_path):
        time.sleep(0.3)
    told = capsys.readouterr().err
    assert told == "" if started else f"logs are in {tmp_path}/session_latest/logs" in told


def test_a_broken_trial_is_named(tmp_path: Path) -> None:
    (name,) = add_trials(tmp_path, "xd", [SETTINGS])
    write_json(trial_folder(tmp_path, name) / "config.json", {"method": "xd"})
    with pytest.raises(ValueError, match=r"xd-0'.* lacks 'settings'"):
        read_trials(tmp_path)
