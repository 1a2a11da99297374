"""The report of a run: tables for the terminal, and one page of HTML with pictures, made from the run folder alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdnas.files import write_atomic
from xdnas.search import figures, page, words
from xdnas.search.page import Html, tag
from xdnas.search.record import Record, read_record
from xdnas.search.runfolder import REPORT, Trial

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def write_report(folder: Path) -> Path:
    """Write report.html into the folder of a finished run, and give its path.

    The page stands alone: pictures are in it, nothing is loaded from elsewhere.

    Raises:
        FileNotFoundError: there is no such folder, or a file of it is missing; the message says what to do.
        ValueError: a file is broken.
        OSError: the page cannot be written; an older one stays as it is.
    """
    record = read_record(Path(folder))
    title = _title(record)
    sections = [*_summary(record), *_pictures(record), *_trials(record), *_setup(record)]
    path = record.folder / REPORT
    write_atomic(path, page.document(title, tag("h1", title), *sections))
    return path


def print_tables(folder: Path, console: "Console") -> None:
    """Print the trials and the methods of a finished run, and in words what won.

    Raises:
        FileNotFoundError, ValueError: as `write_report`.
    """
    record = read_record(Path(folder))
    console.print(_trial_table(record), _method_table(record))
    for sentence in (words.headline(record), *words.remarks(record)):
        console.print(sentence, markup=False, highlight=False)


def _trial_table(record: Record) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    metric = escape(str(record.results["metric"]))
    table = Table(title=f"Trials (validation {metric}, lower is better)", title_justify="left")
    for name, justify in (("trial", "left"), ("settings", "left"), ("epochs", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("validation", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    chosen = _chosen(record)
    for trial in record.trials:
        cells = [escape(str(cell)) for cell in _trial_cells(trial)]
        table.add_row(*cells, style="bold" if trial.name in chosen else "")
    return table


def _method_table(record: Record) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    metric = escape(str(record.results["metric"]))
    title = f"Methods on {escape(str(record.results['task']))} ({metric}, lower is better)"
    table = Table(title=title, title_justify="left", caption=words.times(record), caption_justify="left")
    table.add_column("method")
    for name in ("test", "validation", "parameters", "trials", "time"):
        table.add_column(name, justify="right")
    best = _best_row(record)
    for row, entry in enumerate(record.methods):
        table.add_row(*map(escape, _method_cells(entry)), style="bold" if row == best else "")
    baselines = record.results["baselines"]
    if baselines:
        table.add_section()
    for name, value in baselines.items():
        table.add_row(escape(f"trivial: {name}"), words.number(value), *[""] * 4, style="dim")
    return table


def _trial_cells(trial: Trial) -> list[str]:
    valid = words.number(trial.valid) if trial.status != "diverged" and trial.epochs else trial.status or "-"
    ended = f"{len(trial.epochs)} (stopped)" if trial.status == "stopped" else str(len(trial.epochs))
    return [trial.name, words.settings(trial.settings), ended, valid, words.duration(trial.seconds)]


def _method_cells(entry: Mapping[str, Any]) -> list[str]:
    parameters = f"{entry['parameters']:,}" if "parameters" in entry else ""
    figures_ = [words.number(entry["test"]), words.number(entry["valid"]), parameters, str(entry["trials"])]
    return [str(entry["name"]), *figures_, words.duration(entry["seconds"])]


def _best_row(record: Record) -> int | None:
    tests = {row: entry["test"] for row, entry in enumerate(record.methods) if entry["test"] is not None}
    return min(tests, key=lambda row: float(tests[row]), default=None)


def _chosen(record: Record) -> set[str]:
    best = (record.best(entry["name"]) for entry in record.methods)
    return {trial.name for trial in best if trial is not None}


def _title(record: Record) -> str:
    task, backbone = record.results["task"], record.results["backbone"]
    return (
        f"Search on {task} from {backbone}"
        if record.method("xd") and len(record.methods) > 1
        else f"Training on {task}"
    )


def _summary(record: Record) -> Iterator[Html]:
    yield tag("p", words.headline(record), css="lead")
    for sentence in words.remarks(record):
        yield tag("p", sentence)
    metric = record.results["metric"]
    yield tag("h2", "Methods")
    names = [entry["name"] for entry in record.methods]
    rows = []
    for entry in record.methods:
        name, *rest = _method_cells(entry)
        swatch = page.swatch(figures.colour(name, names))
        rows.append([Html(swatch + page.text(name)), *rest, words.settings(entry["settings"])])
    best = _best_row(record)
    columns = ["method", f"test {metric}", "validation", "parameters", "trials", "time", "settings of the best trial"]
    yield page.table(columns, rows, right=range(1, 6), best=() if best is None else (best,))
    meanings = [f"{name}: {words.MEANING[name]}" for name in names if name in words.MEANING]
    yield tag("p", f"Lower is better. {words.times(record)} {'; '.join(meanings)}.", css="quiet")
    if record.results["baselines"]:
        yield tag("h2", "Trivial predictors")
        rows = [[name, words.number(value)] for name, value in record.results["baselines"].items()]
        yield page.table(["predictor", f"test {metric}"], rows, right=(1,))


def _pictures(record: Record) -> Iterator[Html]:
    supernet = record.best("xd") if record.method("xd") else None
    distance = supernet.epochs[-1]["distance"] if supernet else {}
    shown = [page.picture(figures.curves(record), "Every trial; the best of each method is thick.")]
    if supernet is not None and distance:
        bars = "Relative Frobenius norm for K, L and M; root mean square for b and C."
        shown.append(page.picture(figures.distance_bars(distance), f"{supernet.name} at its end. {bars}"))
        shown.append(page.picture(figures.distance_curves(supernet), "How the architecture left its start, per layer."))
    yield tag("h2", "Training")
    yield tag("div", *shown, css="pictures")
    solutions = figures.predictions(record)
    if solutions:
        yield tag("h2", "Predicted solutions")
        yield tag("div", *[page.picture(svg, "") for svg in solutions], css="pictures")


def _trials(record: Record) -> Iterator[Html]:
    chosen = _chosen(record)
    best = [row for row, trial in enumerate(record.trials) if trial.name in chosen]
    columns = ["trial", "settings", "epochs", f"validation {record.results['metric']}", "time"]
    yield tag("h2", "Trials")
    yield page.table(columns, map(_trial_cells, record.trials), right=(2, 3, 4), best=best)


def _setup(record: Record) -> Iterator[Html]:
    yield tag("h2", "Configuration")
    rows = list(_flat(record.config))
    total = words.duration(record.results["search_seconds"])
    yield page.table(["name", "value"], [*rows, ["search time", total], ["folder", str(record.folder)]])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[list[str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield [f"{prefix}{name}", str(value)]
