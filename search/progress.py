"""What a running search shows: a live table of its trials on a terminal, nothing of its own elsewhere."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from xdnas.search.runfolder import read_trials


def watching(folder: Path, epochs: int, show: bool) -> AbstractContextManager[object]:
    """Show the trials of a run folder while the context lasts, on a terminal; the folder is read twice a second."""
    console = Console()
    if not (show and console.is_terminal):
        return nullcontext()
    return Live(get_renderable=lambda: _table(folder, epochs), console=console, refresh_per_second=2, transient=True)


def _table(folder: Path, epochs: int) -> Table:
    table = Table("trial", "epochs", "validation", "seconds", "", title=str(folder), title_justify="left")
    for trial in read_trials(folder):
        count = len(trial.epochs)
        valid = f"{trial.valid:.4g}" if count else ""
        state = trial.status or ("training" if count else "waiting")
        table.add_row(trial.name, f"{count}/{epochs}", valid, f"{trial.seconds:.0f}" if count else "", state)
    return table
