"""Tables in Markdown, the bounds in them, and what was measured with."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Check(NamedTuple):
    """One bound and what was measured."""

    what: str
    where: str
    value: float
    bound: float

    @property
    def met(self) -> bool:
        """Whether the measured value is within the bound."""
        return self.value <= self.bound


class Report:
    """The page as it grows: lines of Markdown, and every bound that was looked at."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.checks: list[Check] = []
        self.notes: list[str] = []

    def section(self, title: str, text: str, columns: str) -> None:
        """A heading, a paragraph and the head of a table, its columns between bars."""
        rule = "|".join([" --- "] * len(columns.split("|")))
        self._write("", f"## {title}", "", text, "", f"| {columns} |", f"|{rule}|")

    def row(self, *cells: str) -> None:
        """One row of the table."""
        self._write(f"| {' | '.join(cells)} |")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._write("", text)

    def note(self, text: str) -> None:
        """A remark at the end of the page, once."""
        if text not in self.notes:
            self.notes.append(text)

    def bounded(self, what: str, where: str, value: float | None, bound: float | None, unit: str = "x") -> str:
        """A cell that says whether the bound was met; without a bound the value alone, without a value '-'."""
        if value is None or bound is None:
            return times(value, unit)
        self.checks.append(Check(what, where, value, bound))
        verdict = "met" if self.checks[-1].met else "**missed**"
        return f"{times(value, unit)} (≤ {bound:g}: {verdict})"

    def summary(self, why: Mapping[str, str]) -> list[str]:
        """How many bounds were met, and each that was not, with the reason that `why` gives for it."""
        missed = [check for check in self.checks if not check.met]
        lines = [f"{len(self.checks) - len(missed)} of {len(self.checks)} bounds met."]
        if missed:
            names = list(dict.fromkeys(check.what for check in missed))
            lines += ["", *(_missed([check for check in missed if check.what == name], why) for name in names)]
        return lines

    def _write(self, *lines: str) -> None:
        self.lines += lines
        print(*lines, sep="\n", flush=True)


def _missed(checks: Sequence[Check], why: Mapping[str, str]) -> str:
    """One line for what missed its bound, wherever it did."""
    values = ", ".join(f"{check.value:.3g} on {check.where}" for check in checks)
    first = checks[0]
    return f"- {first.what}: {values} instead of {first.bound:g}. {why.get(first.what, '')}".rstrip()


def times(value: float | None, unit: str = "x") -> str:
    """A multiple as a cell."""
    if value is None:
        return "-"
    return f"{value:.2f}{unit}" if value < 10 else f"{value:.0f}{unit}"


def ratio(values: Mapping[str, float], above: str, below: str) -> float | None:
    """The quotient of two measured values, None if one was not measured."""
    if above not in values or below not in values:
        return None
    return values[above] / values[below]


def milliseconds(seconds: float) -> str:
    """Seconds as a cell in milliseconds."""
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def page(report: Report, why: Mapping[str, str], config: Mapping[str, Any]) -> str:
    """The whole file."""
    notes = [line for note in report.notes for line in ("", f"Note: {note}")]
    record = json.dumps({**config, **versions()}, indent=1)
    return "\n".join(
        [
            "# What an XD layer costs",
            "",
            "Written by `make bench`. Times are medians of interleaved calls in one process, float32. A multiple is of "
            "the convolution with the same arguments on the same threads. Published multiples were measured with the "
            "published code, compiled, on one thread. Each bound on a time is looked at for every number of threads.",
            "",
            *report.summary(why),
            *report.lines,
            *notes,
            "",
            "## Configuration",
            "",
            "```json",
            record,
            "```",
            "",
        ]
    )


def versions() -> dict[str, str | int | None]:
    """What the numbers depend on besides the code."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
