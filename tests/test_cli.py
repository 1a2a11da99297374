"""The command line: its flags, its help, its messages, and what Ctrl-C tells."""

import argparse
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import xdnas.tasks
from xdnas.cli import main
from xdnas.flags import make_parser
from xdnas.tasks.train import Diverged

# a new flag belongs here too, and into the documentation
SHARED = ["--data", "--debug", "--help", "--option"]
RUN = ["--backbone", "--device", "--epochs", "--from", "--out", "--resume", "--seed"]
FLAGS = {
    "search": sorted([*SHARED, *RUN, "--address", "--trials"]),
    "train": sorted([*SHARED, *RUN, "--arch-lr", "--arch-momentum", "--arch-optimizer", "--arch-warmup", "--plain"]),
    "data": SHARED,
}
TINY = ["--option", "resolution=32", "--option", "train=20", "--option", "valid=5", "--option", "test=5"]


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
        ("search burgers --option viscosty=1", 1, "viscosty' (did you mean 'viscosity'?)"),
        ("train burgers --plain --device tpu", 1, "device 'tpu' must be 'cpu' or 'cuda'"),
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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("two\n lines"), 1, "xdnas: error: two lines (--debug tells where)\n"),
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
    monkeypatch.setattr("xdnas.commands.search", raising(KeyboardInterrupt("search stopped")))
    assert main(["search", "burgers", "--out", "my run"]) == 130
    assert "Continue with: xdnas search burgers --out 'my run' --resume\n" in capsys.readouterr().err
    assert main(["search", "burgers", "--resume"]) == 130
    assert "Continue with: xdnas search burgers --resume\n" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["search", "train"])
def test_ctrl_c_before_there_is_a_run(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(xdnas.tasks, "load", lambda *_, **__: raising(KeyboardInterrupt())(None))
    assert main([verb, "burgers"]) == 130
    assert capsys.readouterr().err == "\nxdnas: stopped\n"
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_in_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    line = ["train", "burgers", "--plain", "--epochs", "1", *TINY]
    with monkeypatch.context() as patch:
        patch.setattr("xdnas.search.run_trial", lambda *_: raising(KeyboardInterrupt())(None))
        assert main(line) == 130
    assert "Continue with: xdnas train burgers" in capsys.readouterr().err
    assert main([*line, "--resume"]) == 0
