"""The command line: its flags, its messages, what it passes on, and a whole search and training on a tiny problem."""

import argparse
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import write_results, write_run

import xdnas.search
import xdnas.tasks
from xdnas.cli import main
from xdnas.flags import make_parser
from xdnas.tasks.train import Diverged

# a new flag belongs here too, and into the documentation
SHARED = ["--data", "--debug", "--help", "--option"]
RUN = ["--backbone", "--epochs", "--from", "--out", "--resume", "--seed"]
FLAGS = {
    "search": sorted([*SHARED, *RUN, "--address", "--trials"]),
    "train": sorted([*SHARED, *RUN, "--arch-lr", "--arch-momentum", "--arch-optimizer", "--arch-warmup", "--plain"]),
    "data": SHARED,
}
TINY = ["--option", "resolution=32", "--option", "train=20", "--option", "valid=5", "--option", "test=5"]

Calls = list[dict[str, Any]]


def verbs() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def test_flags_are_frozen() -> None:
    flags = {
        name: sorted(flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))
        for name, parser in verbs().items()
    }
    assert flags == FLAGS


@pytest.mark.parametrize("verb", [None, *FLAGS])
def test_help_has_examples_names_and_defaults(verb: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*([verb] if verb else []), "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 0
    assert "examples:" in told
    assert f"xdnas {verb or 'search'} burgers" in told
    if verb:
        assert "burgers: resolution, train, valid, test, viscosity" in told
    if verb in ("search", "train"):
        assert "burgers, cifar10, cifar10-permuted" in told
        assert "lenet, resnet20, pde, fno" in told
        assert f"burgers {xdnas.tasks.BUDGETS['burgers'].epochs}" in told


def test_examples_in_the_help_parse() -> None:
    for parser in verbs().values():
        lines = [
            line.split("   ")[0].split() for line in (parser.epilog or "").splitlines() if line.startswith("  xdnas")
        ]
        assert lines
        for line in lines:
            assert make_parser().parse_known_args(line[1:])[1] == []


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("search burger", 2, "unknown task 'burger' (did you mean 'burgers'?); known: burgers"),
        ("search burgers --backbone resnet", 2, "unknown backbone 'resnet' (did you mean 'resnet20'"),
        ("search burgers --epoch 3", 2, "unknown argument '--epoch' (did you mean '--epochs'?)"),
        ("train burgers --plain --arch-lr 1", 2, "--plain trains no architecture, so --arch-lr"),
        ("search burgers --resume --out nowhere", 1, "nothing to resume in 'nowhere'"),
        ("search burgers --resume", 1, "no unfinished search on 'burgers'"),
        ("search burgers --from nowhere.pt", 1, "nowhere.pt"),
        ("search burgers --option viscosty=1", 1, "viscosty"),
        ("search burgers --out there", 1, "run folder"),
        ("data cifar10 --data nowhere", 1, "nowhere"),
        ("data burgers --option resolution=32 --option resolution=64", 2, "given twice: resolution=32"),
        ("train burgers --epochs 2 --arch-warmup 2", 2, "--arch-warmup 2 leaves no epoch of 2"),
        ("train burgers --arch-optimizer sgd", 2, "--arch-optimizer sgd needs --arch-lr"),
    ],
)
def test_an_error_is_one_line(
    line: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "there").mkdir()
    given = line.split() + ([] if "cifar" in line or "option" in line.split("--arch")[0] else TINY)
    assert main(given) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("xdnas: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "runs").exists()


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
    flags = ["--trials", "3", "--epochs", "2", "--seed", "5", "--out", "mine", "--from", "w.pt", "--address", "a:1"]
    assert main(["search", "burgers", "--backbone", "fno", *flags, *TINY]) == 0
    (call,) = calls
    options = call.pop("task_options")
    assert (call.pop("task"), options["resolution"], options["train"]) == ("burgers", 32, 20)
    wanted = {"backbone": "fno", "trials": 3, "epochs": 2, "seed": 5, "out": "mine"}
    assert call == {**wanted, "start": "w.pt", "address": "a:1", "resume": False}
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
    write_run(tmp_path / "runs" / "d-finished")
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


def test_train_plain_supernet_and_resumed(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "burgers", "--plain", "--out", "a", *TINY]) == 0
    flags = ["--arch-optimizer", "sgd", "--arch-lr", "0.5", "--arch-momentum", "0.9", "--arch-warmup", "1"]
    assert main(["train", "burgers", "--epochs", "3", "--out", "b", *flags, *TINY]) == 0
    assert calls[0]["settings"] is None
    chosen = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "warmup": 1}
    assert vars(calls[1]["settings"]) == chosen
    assert calls[0]["backbone"] == "pde"
    unfinished(tmp_path / "runs" / "c", settings=chosen)
    assert main(["train", "burgers", "--resume", "--arch-lr", "0.4"]) == 2
    assert "--arch-lr 0.4 contradicts the run" in capsys.readouterr().err
    assert main(["train", "burgers", "--resume", "--plain"]) == 2
    assert main(["train", "burgers", "--resume", "--arch-lr", "0.5"]) == 0
    assert vars(calls[2]["settings"]) == chosen


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("two\n lines"), 1, "xdnas: error: two lines"),
        (Diverged("epoch 3: loss nan"), 1, "xdnas: error: epoch 3: loss nan"),
        (FileExistsError("run folder 'x' exists already"), 1, "run folder 'x' exists already"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "Permission denied: '/x'"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "(/x/y); what is finished is kept: make room"),
        (OSError(errno.EFBIG, "File too large"), 1, "File too large; what is finished is kept"),
        (RuntimeError("2 of 4 trials failed"), 1, "2 of 4 trials failed (--debug tells where)"),
        (ImportError("h5py is missing"), 1, "h5py is missing"),
    ],
)
def test_expected_errors(
    error: Exception, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("xdnas.commands.search", raising(error))
    assert main(["search", "burgers"]) == code
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert message in told
    assert main(["search", "burgers", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def raising(error: BaseException) -> Callable[[object], None]:
    def run(args: object) -> None:
        raise error

    return run


def test_a_fault_of_xdnas_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xdnas.commands.data", raising(TypeError("a fault")))
    with pytest.raises(TypeError, match="a fault"):
        main(["data", "burgers"])


def test_ctrl_c_tells_how_to_resume(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("xdnas.commands.search", raising(KeyboardInterrupt()))
    assert main(["search", "burgers", "--out", "my run"]) == 130
    assert "Continue with: xdnas search burgers --out 'my run' --resume\n" in capsys.readouterr().err
    assert main(["search", "burgers", "--resume"]) == 130
    assert "Continue with: xdnas search burgers --resume\n" in capsys.readouterr().err
    monkeypatch.setattr("xdnas.commands.data", raising(KeyboardInterrupt()))
    assert main(["data", "burgers"]) == 130
    assert "Continue" not in capsys.readouterr().err


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
