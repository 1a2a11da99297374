"""What the commands pass on, which run they resume, and a whole search and training on a tiny problem."""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import write_results, write_run

import xdnas.search
import xdnas.tasks
from xdnas.cli import main

TINY = ["--option", "resolution=32", "--option", "train=20", "--option", "valid=5", "--option", "test=5"]

Calls = list[dict[str, Any]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Commands in an empty folder, with a search and a training that only record what they are given."""
    made: Calls = []

    def run(task: Any, backbone: Any, **arguments: Any) -> SimpleNamespace:
        made.append({"task": task, "backbone": backbone, **arguments})
        folder = Path(arguments["out"] or tmp_path / "run")
        if arguments["resume"]:
            write_results(folder)
        else:
            write_run(folder)
        return SimpleNamespace(folder=folder, diverged=False, valid=[])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(xdnas.search, "search", run)
    monkeypatch.setattr(xdnas.search, "train", run)
    return made


def test_search_passes_on_what_was_given(calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--trials=3", "--epochs=2", "--seed=5", "--out=mine", "--from=w.pt", "--address=a:1", "--device=cpu"]
    assert main(["search", "burgers", "--backbone", "fno", *flags, *TINY]) == 0
    (call,) = calls
    options = call.pop("task_options")
    assert (call.pop("task"), options["resolution"], options["train"]) == ("burgers", 32, 20)
    wanted = {"backbone": "fno", "trials": 3, "epochs": 2, "seed": 5, "out": "mine"}
    assert call == {**wanted, "start": "w.pt", "address": "a:1", "resume": False, "device": "cpu"}
    assert capsys.readouterr().out.splitlines()[-1] == "mine"
    assert (tmp_path / "mine" / "report.html").is_file()


def test_search_takes_the_small_budget_of_the_task(calls: Calls) -> None:
    assert main(["search", "burgers", *TINY]) == 0
    budget = xdnas.tasks.BUDGETS["burgers"]
    assert (calls[0]["trials"], calls[0]["epochs"], calls[0]["seed"]) == (budget.trials, budget.epochs, 0)
    assert calls[0]["out"] is None
    assert calls[0]["backbone"] is None


def unfinished(folder: Path, **config: Any) -> Path:
    write_run(folder)
    (folder / "results.json").unlink()
    path = folder / "config.json"
    options = {"resolution": 32, "train": 20, "valid": 5, "test": 5}
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_options": options, "start": None, **config}))
    return folder


def test_resume_takes_the_newest_unfinished_run_of_the_task_with_its_settings(calls: Calls, tmp_path: Path) -> None:
    unfinished(tmp_path / "runs" / "z-older", trials=9)
    newest = unfinished(tmp_path / "runs" / "b-newest", trials=4, epochs=6)
    unfinished(tmp_path / "runs" / "c-other", task="cifar10")
    (write_run(tmp_path / "runs" / "d-finished") / "report.html").touch()
    for number, name in enumerate(("z-older", "b-newest", "c-other", "d-finished")):
        os.utime(tmp_path / "runs" / name / "config.json", (1e9 + number, 1e9 + number))
    assert main(["search", "burgers", "--resume"]) == 0
    (call,) = calls
    assert call["out"] == newest
    assert (call["resume"], call["trials"], call["epochs"], call["seed"]) == (True, 4, 6, 7)
    assert call["task_options"]["resolution"] == 32
    assert call["backbone"] == "pde"


def test_resume_with_the_same_command(calls: Calls, tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "runs" / "a")
    given = ["--trials", "2", "--epochs", "3", "--seed", "7", "--backbone", "pde", *TINY]
    assert main(["search", "burgers", *given, "--resume"]) == 0
    assert calls[0]["out"] == folder


def test_resume_refuses_other_settings(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unfinished(tmp_path / "runs" / "a")
    assert main(["search", "burgers", "--resume", "--epochs", "9", "--option", "resolution=64"]) == 2
    told = capsys.readouterr().err
    assert "--epochs was 3, not 9; task option resolution was 32, not 64" in told
    assert str(folder) in told
    assert calls == []


def test_resume_makes_a_report_that_is_missing(calls: Calls, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "a")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_options": {}, "start": None}))
    assert main(["search", "burgers", "--resume"]) == 0
    assert calls[0]["out"] == folder
    assert (folder / "report.html").is_file()
    assert main(["search", "burgers", "--resume"]) == 1


def test_resume_passes_over_a_broken_run(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unfinished(tmp_path / "runs" / "a")
    broken = tmp_path / "runs" / "b" / "config.json"
    broken.parent.mkdir()
    broken.write_text("{")
    assert main(["search", "burgers", "--resume"]) == 0
    assert calls[0]["out"] == folder
    assert "runs/b/config.json' is no JSON" in capsys.readouterr().err


def test_resume_tells_a_search_from_a_training(calls: Calls, tmp_path: Path) -> None:
    # both are said to have trials and settings
    unfinished(tmp_path / "runs" / "a", verb="train", settings=None)
    assert main(["search", "burgers", "--resume"]) == 1
    assert main(["train", "burgers", "--resume"]) == 0


def test_train_holds_the_samples_once(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded, alive = xdnas.tasks.load, list[Any](), list[Any]()
    run = xdnas.search.train

    def watched(*args: Any, **options: Any) -> Any:
        task = load(*args, **options)
        loaded.append(weakref.ref(task))
        return task

    def counted(*args: Any, **options: Any) -> Any:
        gc.collect()
        alive.append([ref() for ref in loaded])
        return run(*args, **options)

    monkeypatch.setattr(xdnas.tasks, "load", watched)
    monkeypatch.setattr(xdnas.search, "train", counted)
    assert main(["train", "burgers", *TINY]) == 0
    assert alive == [[None]]


def test_train_plain_supernet_and_resumed(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "burgers", "--plain", "--out", "a", *TINY]) == 0
    flags = ["--arch-optimizer", "sgd", "--arch-lr", "0.5", "--arch-momentum", "0.9", "--arch-warmup", "1"]
    assert main(["train", "burgers", "--epochs", "3", "--out", "b", *flags, *TINY]) == 0
    assert calls[0]["settings"] is None
    chosen = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "warmup": 1}
    assert vars(calls[1]["settings"]) == chosen
    assert calls[0]["backbone"] is None
    unfinished(tmp_path / "runs" / "c", verb="train", settings=chosen)
    assert main(["train", "burgers", "--resume", "--arch-lr", "0.4"]) == 2
    assert "--arch-lr 0.4 contradicts the run" in capsys.readouterr().err
    assert main(["train", "burgers", "--resume", "--plain"]) == 2
    assert main(["train", "burgers", "--resume", "--arch-lr", "0.5"]) == 0
    assert vars(calls[2]["settings"]) == chosen


def test_data(calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "burgers", *TINY]) == 0
    told = capsys.readouterr().out
    assert "2 x 32" in told
    assert "relative L2" in told
    assert "resolution=32" in told
    assert f"data: generated, kept in {tmp_path / 'cache'}" in told


def test_data_of_official_files(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (["--data", str(data_dir)], []):
        assert main(["data", "cifar10", *place, "--option", "train=50", "--option", "valid=10"]) == 0
        told = capsys.readouterr().out
        assert "3 x 32 x 32" in told
        assert f"data: {data_dir}" in told


@pytest.mark.slow
def test_a_search_stopped_by_ctrl_c_and_resumed(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "xdnas.cli", "search", "burgers", "--trials", "1", "--epochs", "6", *TINY]
    environment = {**os.environ, "XDNAS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a group of its own, which gets the signal as a whole: so does a terminal's Ctrl-C
    first = subprocess.Popen(line, cwd=tmp_path, env=environment, start_new_session=True, **pipes)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/trials/*/epochs.jsonl")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 130, told
    assert "--resume" in told.splitlines()[-1]
    second = subprocess.run([*line, "--resume"], cwd=tmp_path, env=environment, timeout=200, **pipes)
    assert second.returncode == 0, second.stderr
    folder = Path(second.stdout.splitlines()[-1])
    assert [folder] == list(tmp_path.glob("runs/*"))
    results = json.loads((folder / "results.json").read_text())
    assert [entry["name"] for entry in results["methods"]] == ["backbone", "frozen", "xd", "fno"]
    assert (folder / "report.html").is_file()


def test_a_training_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    assert main(["train", "burgers", "--epochs", "2", *TINY]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert folder.parent == tmp_path / "runs"
    assert "Training on burgers" in (folder / "report.html").read_text()
    assert main(["train", "burgers", "--epochs", "2", "--out", str(folder), *TINY]) == 1
    assert "--resume" in capsys.readouterr().err


def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    assert main(["data", "burgers", *TINY]) == 0
    line = ["train", "burgers", "--epochs", "2", "--plain", *TINY]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # enough for the small files, not for a checkpoint
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert main(line) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "File too large; what is finished is kept: make room, then continue with --resume" in told
    (folder,) = (tmp_path / "runs").iterdir()
    assert not list(folder.glob("**/.checkpoint*"))
    assert main([*line, "--resume"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
