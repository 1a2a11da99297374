"""A search as a whole: what it finds, writes and reads back, and what becomes of trials that fail."""

import json
import logging
import os
import pickle
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from searching import SETTINGS, setup, valids
from smalltask import net, small_task
from torch import Tensor

from xdnas.search import SearchResult, search
from xdnas.search.runfolder import add_trials, best_trial, read_trials, trial_folder
from xdnas.search.trial import Setup, run_trial
from xdnas.search.tune import ray_running, run_trials
from xdnas.tasks.train import evaluate


def ray_variables() -> dict[str, str]:
    """What is set for Ray; it sets RAY_CLIENT_MODE itself."""
    ours = ("RAY_", "TUNE_")
    return {name: os.environ[name] for name in os.environ if name.startswith(ours) and name != "RAY_CLIENT_MODE"}


@pytest.fixture(scope="module")
def ray_storage() -> Iterator[Path]:
    """One Ray for all tests here; it leaves no trace in this process."""
    # the user may have imported it before
    assert not ray.is_initialized()
    before, level = ray_variables(), logging.getLogger("ray.tune").level
    with ray_running(None, 2, 0) as storage:
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        yield storage
    assert not storage.exists()
    assert ray_variables() == before
    assert logging.getLogger("ray.tune").level == level


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
    assert (config["verb"], config["worker_threads"]) == ("search", 1)
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
