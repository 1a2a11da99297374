"""Wrong inputs of the command line, of resuming and of the report: (id, call, exception, message)."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fake_run import write_run

from xdnas.flags import UsageError, parse
from xdnas.resume import find_run, settled
from xdnas.search.report import write_report


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _report(change: Callable[[Path], object]) -> object:
    with _folder() as base:
        folder = write_run(base / "run", trials=1)
        change(folder)
        return write_report(folder)


def _written(path: str, text: str) -> Callable[[], object]:
    return lambda: _report(lambda folder: (folder / path).write_text(text))


def _removed(path: str) -> Callable[[], object]:
    return lambda: _report(lambda folder: (folder / path).unlink())


def _truncated(path: str) -> Callable[[], object]:
    def cut(folder: Path) -> None:
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(content[: len(content) // 2])

    return lambda: _report(cut)


def _resume(given: dict[str, object], options: dict[str, object]) -> Callable[[], object]:
    def call() -> object:
        with _folder() as base:
            return settled(write_run(base / "run"), given, options)

    return call


def _find(task: str, out: str | None) -> Callable[[], object]:
    def call() -> object:
        with _folder() as base:
            (write_run(base / "runs" / "a") / "report.html").touch()
            before = Path.cwd()
            os.chdir(base)
            try:
                return find_run("search", task, out)
            finally:
                os.chdir(before)

    return call


def _line(text: str) -> Callable[[], object]:
    return lambda: parse(text.split())


ROWS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("report: no folder", lambda: write_report(Path("/no/such")), FileNotFoundError, "no run folder '/no/such'"),
    ("report: no config", _removed("config.json"), FileNotFoundError, "config.json': it is no run folder"),
    ("report: no results", _removed("results.json"), FileNotFoundError, "results.json'.*not finished.*--resume"),
    ("report: torn config", _truncated("config.json"), ValueError, "config.json' is no JSON"),
    ("report: torn results", _truncated("results.json"), ValueError, "results.json' is no JSON"),
    ("report: list", _written("results.json", "[]"), ValueError, "results.json' holds a list"),
    (
        "report: other object",
        _written("results.json", '{"a": 1}'),
        ValueError,
        "results.json' lacks 'task'; it has 'a'",
    ),
    (
        "report: kind",
        _written("results.json", '{"task": 3}'),
        ValueError,
        "results.json': 'task' is '3', not of type str",
    ),
    ("report: torn epochs", _truncated("trials/xd-0/epochs.jsonl"), ValueError, "epochs.jsonl', line 2, is no JSON"),
    ("report: epoch", _written("trials/xd-0/epochs.jsonl", "{}\n"), ValueError, "epochs.jsonl' lacks 'epoch'"),
    ("report: trial", _written("trials/xd-0/config.json", "{}"), ValueError, "xd-0'.* lacks 'method'"),
    ("report: torn predictions", _truncated("predictions.npz"), ValueError, "predictions.npz' is broken.*remove it"),
    ("report: no arrays", _written("predictions.npz", "x"), ValueError, "predictions.npz' is broken"),
    ("resume: trials", _resume({"trials": 3}, {}), UsageError, "--trials was 2, not 3. Leave these out to resume it"),
    ("resume: option", _resume({}, {"resolution": 64}), UsageError, "task option resolution was 32, not 64"),
    ("resume: from", _resume({"start": "/a.pt"}, {}), UsageError, "--from was None, not '/a.pt'"),
    ("resume: nothing", _find("burgers", None), FileNotFoundError, "no unfinished search on 'burgers'.*--out"),
    ("resume: no config", _find("burgers", "nowhere"), FileNotFoundError, "nothing to resume in 'nowhere'"),
    ("resume: other task", _find("cifar10", "runs/a"), UsageError, "holds no search on 'cifar10'"),
    ("cli: nothing", _line(""), UsageError, "COMMAND; see xdnas --help"),
    ("cli: command", _line("serach burgers"), UsageError, "invalid choice: 'serach' .*search"),
    ("cli: no task", _line("search"), UsageError, "TASK; see xdnas search --help"),
    ("cli: task", _line("search burger"), UsageError, r"unknown task 'burger' \(did you mean 'burgers'\?\); known: "),
    ("cli: backbone", _line("search burgers --backbone lenat"), UsageError, r"unknown backbone 'lenat' .*'lenet'\?"),
    ("cli: flag", _line("search burgers --trails 3"), UsageError, r"unknown argument '--trails' .*'--trials'"),
    ("cli: short flag", _line("search burgers --trial 3"), UsageError, "unknown argument '--trial'"),
    ("cli: no trials", _line("search burgers --trials 0"), UsageError, "'0' is not a whole number of at least 1"),
    ("cli: half a trial", _line("search burgers --trials 1.5"), UsageError, "'1.5' is not a whole number"),
    ("cli: seed", _line("search burgers --seed -1"), UsageError, "expected one argument|at least 0"),
    ("cli: option", _line("data burgers --option resolution"), UsageError, "'resolution' is not KEY=VALUE"),
    ("cli: optimizer", _line("train burgers --arch-optimizer lion"), UsageError, "invalid choice: 'lion'"),
]
