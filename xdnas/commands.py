"""What the commands do. Heavy modules are imported where they are used, so that a wrong flag is told at once."""

import argparse
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdnas.flags import UsageError

if TYPE_CHECKING:
    from xdnas.tasks.task import Recipe, Task
    from xdnas.tasks.train import ArchSettings


def search(args: argparse.Namespace) -> None:
    """Search, print the tables, write the report, and print the run folder as the last line."""
    from xdnas.search import search as run

    folder, config = _started(args, ("trials",))
    budget = _budget(args.task)
    result = run(
        args.task,
        config.get("backbone", args.backbone),
        trials=config.get("trials", _or(args.trials, budget.trials)),
        epochs=config.get("epochs", _or(args.epochs, budget.epochs)),
        seed=config.get("seed", _or(args.seed, 0)),
        out=folder or args.out,
        resume=args.resume,
        start=config.get("start", args.start),
        task_options=_task_options(args, config),
        device=args.device,
        address=args.address,
    )
    _show(result.folder)


def train(args: argparse.Namespace) -> None:
    """Train one network, print the tables, write the report, and print the run folder as the last line."""
    from xdnas.search import train as run
    from xdnas.tasks.train import Diverged

    flags = [f"--arch-{name}" for name, value in _arch_given(args).items() if value is not None]
    if args.plain and flags:
        raise UsageError(f"--plain trains no architecture, so {', '.join(flags)} cannot be given with it")
    folder, config = _started(args, ())
    epochs = config.get("epochs", _or(args.epochs, _budget(args.task).epochs))
    if folder:
        settings = _kept_settings(folder, config["settings"])
    else:
        settings = None if args.plain else _arch_settings(args, _recipe(args), epochs)
    result = run(
        args.task,
        config.get("backbone", args.backbone),
        epochs=epochs,
        settings=settings,
        seed=config.get("seed", _or(args.seed, 0)),
        out=folder or args.out,
        resume=args.resume,
        start=config.get("start", args.start),
        task_options=_task_options(args, config),
        device=args.device,
    )
    _show(result.folder)
    if result.diverged:
        raise Diverged(f"the training diverged after {len(result.valid)} epochs; try a smaller --arch-lr")


def data(args: argparse.Namespace) -> None:
    """Generate or check the data of a task, and print what they hold."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from xdnas.tasks.data import cache_folder

    task = _task(args, {})
    table = Table("set", "samples", "input", "target", title=f"Data of {escape(task.name)}", title_justify="left")
    for name in ("train", "valid", "test"):
        x, y = getattr(task, name).tensors
        table.add_row(name, f"{len(x):,}", _shape(x.shape[1:]), _shape(y.shape[1:]) or "class")
    console = Console()
    console.print(table)
    if task.baselines:
        trivial = Table("trivial predictor", f"test {escape(task.metric.name)}", title_justify="left")
        for name, value in task.baselines.items():
            trivial.add_row(escape(name), f"{value:.4g}")
        console.print(trivial)
    options = ", ".join(f"{name}={value}" for name, value in task.options.items())
    console.print(f"options: {options or 'none'}", markup=False, highlight=False)
    generated = any(cache_folder().glob(f"{task.name}-*"))
    folder = f"generated, kept in {cache_folder()}" if generated else os.environ.get("XDNAS_DATA")
    where = task.options.get("data") or folder
    console.print(f"data: {where}", markup=False, highlight=False, soft_wrap=True)


def _started(args: argparse.Namespace, more: tuple[str, ...]) -> tuple[Path | None, dict[str, Any]]:
    """The run folder to continue and its config; nothing for a new run."""
    from xdnas.resume import find_run, settled

    if not args.resume:
        _check_out(args.out)
        return None, {}
    folder = find_run(args.verb, args.task, args.out)
    given = {name: getattr(args, name) for name in ("backbone", "epochs", "seed", "start", *more)}
    config = settled(folder, given, _options(args))
    if args.verb == "train":
        _check_arch(args, config["settings"] or {}, folder)
    return folder, config


def _check_out(out: str | None) -> None:
    if out is not None and Path(out).exists():
        raise FileExistsError(
            f"run folder {out!r} exists already; choose another --out, or continue the run in it with --resume"
        )


def _check_arch(args: argparse.Namespace, had: Mapping[str, Any], folder: Path) -> None:
    given = {name: value for name, value in _arch_given(args).items() if value is not None}
    other = [f"--arch-{name} {value}" for name, value in given.items() if had.get(name) != value]
    if args.plain and had:
        other.append("--plain")
    if other:
        raise UsageError(
            f"{', '.join(other)} contradicts the run in {str(folder)!r}: {dict(had) or 'the plain backbone'}"
        )


def _task(args: argparse.Namespace, config: Mapping[str, Any]) -> "Task":
    import xdnas.tasks

    return xdnas.tasks.load(args.task, **_task_options(args, config))


def _recipe(args: argparse.Namespace) -> "Recipe":
    """The recipe alone: the samples do not stay in memory beside those of the training."""
    task = _task(args, {})
    return task.recipe(args.backbone or task.backbone)


def _task_options(args: argparse.Namespace, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the task is loaded with: as the run that is resumed has it, or as given."""
    return dict(config.get("task_options") or _options(args))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Task options that were given, the place of the data among them."""
    options = dict(args.option)
    if len(options) < len(args.option):
        raise UsageError(f"a task option is given twice: {', '.join(f'{k}={v}' for k, v in args.option)}")
    if args.data is not None:
        options["data"] = str(Path(args.data).absolute())
    return options


def _arch_given(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, f"arch_{name}") for name in ("optimizer", "lr", "momentum", "warmup")}


def _arch_settings(args: argparse.Namespace, recipe: "Recipe", epochs: int) -> "ArchSettings":
    """The recipe's settings of the architecture's optimizer, changed by what was given."""
    from xdnas.tasks.train import ArchSettings

    optimizer = args.arch_optimizer or recipe.arch_optimizer
    same = optimizer == recipe.arch_optimizer
    if not same and args.arch_lr is None:
        raise UsageError(
            f"--arch-optimizer {optimizer} needs --arch-lr: the task's own step size {recipe.arch_lr:g} is one for "
            f"{recipe.arch_optimizer}"
        )
    if args.arch_warmup is not None and args.arch_warmup >= epochs:
        raise UsageError(f"--arch-warmup {args.arch_warmup} leaves no epoch of {epochs} to train the architecture in")
    return ArchSettings(
        optimizer,
        _or(args.arch_lr, recipe.arch_lr),
        _or(args.arch_momentum, recipe.arch_momentum if same else 0.0),
        _or(args.arch_warmup, math.floor(recipe.arch_warmup * epochs)),
    )


def _kept_settings(folder: Path, values: Mapping[str, Any] | None) -> "ArchSettings | None":
    from xdnas.tasks.train import ArchSettings

    try:
        return ArchSettings(**values) if values else None
    except TypeError as error:
        raise ValueError(f"{str(folder / 'config.json')!r} holds no settings of a training: {error}") from error


def _budget(task: str) -> Any:
    import xdnas.tasks

    return xdnas.tasks.BUDGETS[task]


def _show(folder: Path) -> None:
    from rich.console import Console

    from xdnas.search.report import print_tables, write_report
    from xdnas.search.runfolder import REPORT, resumable

    with resumable("the report", folder):
        print_tables(folder, Console())
        page = folder / REPORT
        print(f"report: {page if page.is_file() else write_report(folder)}")
        print(folder)


def _shape(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
