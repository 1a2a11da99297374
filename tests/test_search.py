import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from smalltask import net, small_task
from torch import Tensor, nn

from xdnas.search import SearchResult, search
from xdnas.search.prepare import prepare
from xdnas.search.runfolder import (
    add_trials,
    best_trial,
    claimed,
    read_trials,
    trial_folder,
    write_epochs,
    write_status,
)
from xdnas.search.space import arch_settings, architecture_settings, weight_settings
from xdnas.search.trial import Setup, is_registered, run_trial
from xdnas.search.tune import ray_running, run_trials
from xdnas.tasks.task import Recipe, Task
from xdnas.tasks.train import Epoch, evaluate

RECIPE = Recipe("adam", 1e-3, arch_optimizer="sgd", arch_lr=0.3, arch_momentum=0.5, arch_warmup=0.9)
SETTINGS = {"lr": 3e-3, "arch_optimizer": "adam", "arch_lr": 1e-2, "arch_momentum": 0.0, "arch_warmup": 0}


def setup(folder: Path, task: Task, epochs: int = 3) -> Setup:
    return prepare(
        task,
        net(),
        ("xd",),
        epochs=epochs,
        seed=0,
        out=folder,
        resume=False,
        start=None,
        data=None,
        task_options=None,
        device=None,
        record={},
    )[0]


def valids(folder: Path, name: str) -> list[float]:
    lines = (trial_folder(folder, name) / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line)["valid"] for line in lines]


# without Ray


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


def test_a_trial_killed_between_any_two_writes_continues_bit_for_bit(tmp_path: Path) -> None:
    task = small_task()
    run = setup(tmp_path / "run", task)
    for name in add_trials(run.folder, "xd", [SETTINGS, SETTINGS]):
        list(run_trial(run, task, name))
    killed, whole = (trial_folder(run.folder, name) for name in ("xd-1", "xd-0"))
    (killed / "result.json").unlink()
    (killed / "epochs.jsonl").unlink()
    (killed / ".checkpoint.pt-torn").write_bytes(b"PK")
    list(run_trial(run, task, "xd-1"))
    assert valids(run.folder, "xd-1") == valids(run.folder, "xd-0")
    assert (killed / "checkpoint.pt").stat().st_size == (whole / "checkpoint.pt").stat().st_size
    assert not (killed / ".checkpoint.pt-torn").exists()


# with Ray: one for all of these, but for those that end the process


@pytest.fixture(scope="module")
def ray_storage() -> Iterator[Path]:
    with ray_running(None, 2, 0) as storage:
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        yield storage
    assert not storage.exists()


@pytest.fixture(scope="module")
def found(ray_storage: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    out = tmp_path_factory.mktemp("search with space") / "run"
    return search(small_task(), net(), trials=3, epochs=4, out=out, progress=False, early_stopping=False)


def test_search_beats_the_backbone_and_frozen_ties_it(found: SearchResult) -> None:
    backbone, frozen, xd = (found.method(name) for name in ("backbone", "frozen", "xd"))
    assert [entry["trials"] for entry in (backbone, frozen, xd)] == [3, 1, 3]
    assert frozen["test"] == pytest.approx(backbone["test"], rel=1e-3)
    assert xd["test"] < backbone["test"]
    assert xd["settings"]["lr"] == frozen["settings"]["lr"] == backbone["settings"]["lr"]
    assert all(parts["K"] > 0 for parts in found.distance.values())
    assert found.seconds > 0


def test_search_writes_its_folder(found: SearchResult) -> None:
    results = json.loads((found.folder / "results.json").read_text())
    assert (results["task"], results["metric"], results["epochs"]) == ("small", "relative L2", 4)
    config = json.loads((found.folder / "config.json").read_text())
    assert config["trials"] == 3
    assert {"python", "torch", "ray", "xdnas", "platform", "cpus", "threads"} <= set(config["versions"])
    assert {trial.status for trial in read_trials(found.folder)} == {"finished"}
    assert {path.name for path in (found.folder / "best").iterdir()} == {"backbone.pt", "frozen.pt", "xd.pt"}


def test_the_best_model_scores_the_same_when_loaded(found: SearchResult) -> None:
    task = small_task()
    assert evaluate(found.load_best(), task.test, task.metric, 10) == found.method("xd")["test"]
    with pytest.raises(ValueError, match=r"no method 'fno'.*backbone, frozen, xd"):
        found.load_best("fno")


def test_a_complete_search_is_read_back(found: SearchResult) -> None:
    again = search(
        small_task(),
        net(),
        trials=3,
        epochs=4,
        out=found.folder,
        resume=True,
        progress=False,
        early_stopping=False,
    )
    assert again.methods == found.methods


def test_a_search_goes_on_with_what_is_missing(found: SearchResult) -> None:
    own = trial_folder(found.folder, "xd-1")
    before, kept = valids(found.folder, "xd-1"), (trial_folder(found.folder, "xd-0") / "result.json").stat().st_mtime_ns
    for path in (own / "result.json", own / "epochs.jsonl", found.folder / "results.json"):
        path.unlink()
    options: dict[str, Any] = {"trials": 3, "epochs": 4, "resume": True, "progress": False, "early_stopping": False}
    again = search(small_task(), net(), out=found.folder, **options)
    assert [entry["test"] for entry in again.methods] == [entry["test"] for entry in found.methods]
    assert again.seconds > found.seconds
    assert valids(found.folder, "xd-1") == before
    assert (trial_folder(found.folder, "xd-0") / "result.json").stat().st_mtime_ns == kept


def test_diverged_and_stopped_trials_are_told_and_never_chosen(
    ray_storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = setup(tmp_path / "run", small_task(), epochs=6)
    wild = {**SETTINGS, "arch_optimizer": "sgd", "arch_lr": 1e38}
    names = add_trials(run.folder, "xd", [SETTINGS, wild, {**SETTINGS, "lr": 1e-9, "arch_lr": 1e-9}])
    run_trials(names, run, ray_storage, concurrent=1, early_stopping=True, lines=True)
    ended = [(trial.status, len(trial.epochs)) for trial in read_trials(run.folder)]
    assert ended == [("finished", 6), ("diverged", 0), ("stopped", 3)]
    best = best_trial(run.folder, "xd")
    assert best is not None
    assert best.name == "xd-0"
    assert json.loads((trial_folder(run.folder, "xd-1") / "result.json").read_text())["valid"] is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("xd-0: finished after 6 epochs, validation 0.")
    assert lines[1].startswith("xd-1: diverged after 0 epochs (lr 0.003")
    assert lines[2].startswith("xd-2: stopped after 3 epochs")


def test_a_failing_trial_gives_one_clear_error(ray_storage: Path, tmp_path: Path) -> None:
    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        raise OSError(28, "No space left on device")

    run = setup(tmp_path / "run", small_task(loss=loss))
    names = add_trials(run.folder, "xd", [SETTINGS, SETTINGS])
    with pytest.raises(RuntimeError, match=r"2 of 2 trials failed: xd-0: OSError: .*No space left.*resume=True, out="):
        run_trials(names, run, ray_storage, concurrent=2, early_stopping=True, lines=False)


def test_a_killed_worker_is_replaced_and_the_trial_is_the_same(ray_storage: Path, tmp_path: Path) -> None:
    plain = small_task().loss
    marker, driver = tmp_path / "killed", os.getpid()
    calls = 0

    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 5 and os.getpid() != driver and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(prediction, target)

    run = setup(tmp_path / "run", small_task(loss=loss))
    names = add_trials(run.folder, "xd", [SETTINGS])
    run_trials(names, run, ray_storage, concurrent=1, early_stopping=True, lines=False)
    assert marker.exists()
    other = setup(tmp_path / "other", small_task())
    add_trials(other.folder, "xd", [SETTINGS])
    list(run_trial(other, small_task(), "xd-0"))
    assert valids(run.folder, "xd-0") == pytest.approx(valids(other.folder, "xd-0"), rel=1e-5)


def test_what_tune_is_given_is_small(found: SearchResult) -> None:
    named = Setup(found.folder, "burgers", "pde", 4, 0)
    assert len(pickle.dumps(named)) < 2**12


# each its own process, as from a notebook: everything of the user's is defined in __main__

NOTEBOOK = """
import sys, time
sys.path.insert(0, {tests!r})
import torch
from torch import nn
from smalltask import small_task
from xdnas.search import search

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
    def forward(self, x):
        return self.conv(x)

def loss(prediction, target):
    time.sleep({delay})
    return (prediction - target).square().mean()

result = search(small_task(loss=loss), Mine(), trials=1, epochs=4, out={out!r}, resume={resume})
print("test", *[entry["test"] for entry in result.methods])
"""


def notebook(out: Path, *, resume: bool, delay: float) -> "subprocess.Popen[str]":
    code = NOTEBOOK.format(tests=str(Path(__file__).parent), out=str(out), resume=resume, delay=delay)
    command = [sys.executable, "-"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(code)
    process.stdin.close()
    process.stdin = None
    return process


def interrupted(out: Path, number: signal.Signals) -> str:
    process = notebook(out, resume=False, delay=0.3)
    rows = trial_folder(out, "backbone-0") / "epochs.jsonl"
    deadline = time.monotonic() + 60
    while not rows.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    # an uncaught KeyboardInterrupt ends Python by the signal itself
    assert process.returncode == -number
    return errors


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(ray_storage: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    errors = interrupted(out, signal.SIGINT)
    assert f"search stopped; it continues with the same arguments, resume=True and out={str(out)!r}" in errors
    done = valids(out, "backbone-0")
    assert 1 <= len(done) < 4
    result = search(small_task(), Mine(), trials=1, epochs=4, out=out, resume=True, progress=False)
    assert [entry["trials"] for entry in result.methods] == [1, 1, 1]
    assert len(valids(out, "backbone-0")) == 4
    assert valids(out, "backbone-0")[: len(done)] == done


@pytest.mark.slow
def test_a_killed_search_resumes_quietly(tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupted(out, signal.SIGKILL)
    done = valids(out, "backbone-0")
    second = notebook(out, resume=True, delay=0.0)
    output, errors = second.communicate(timeout=100)
    assert second.returncode == 0, errors
    assert errors == ""
    lines = output.splitlines()
    assert {line.split(":")[0] for line in lines[:-1]} == {"backbone-0", "frozen-0", "xd-0"}
    assert lines[-1].startswith("test ")
    assert valids(out, "backbone-0")[: len(done)] == done
    assert torch.load(out / "best" / "xd.pt", weights_only=True).keys() >= {"conv.weight", "conv.K.0.factors"}


@pytest.mark.slow
def test_a_python_whose_path_has_spaces(tmp_path: Path) -> None:
    link = tmp_path / "a folder with spaces"
    link.symlink_to(sys.prefix, target_is_directory=True)
    options = [f"--option={o}" for o in ("train=20", "valid=4", "test=4", "resolution=32")]
    arguments = ["search", "burgers", "--trials", "1", "--epochs", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [str(link / "bin" / "python"), "-m", "xdnas.cli", *arguments, *options],
        env={**os.environ, "XDNAS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").is_file()
