"""The report of a run: what it tells, that it stands alone, and what it says of broken folders."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_run import FINAL, write_run, write_trial
from rich.console import Console

from xdnas.search.report import print_tables, write_report
from xdnas.search.words import comparison, duration

VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Every element is closed in order; nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [
            v or "" for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith("#")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    return parser


def tables(folder: Path) -> str:
    buffer = io.StringIO()
    print_tables(folder, Console(file=buffer, width=140))
    return buffer.getvalue()


def test_page_stands_alone_and_is_whole(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run"))
    page = path.read_text()
    found = parsed(page)
    assert path == tmp_path / "run" / "report.html"
    assert found.loads == []
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    assert {"script", "link", "img", "iframe"}.isdisjoint(found.seen)
    assert found.seen.count("svg") == 3 + 2
    assert found.seen.count("table") == 4
    assert "prefers-color-scheme" in page or "color-scheme: light dark" in page
    assert 'name="viewport"' in page


def test_page_tells_methods_trials_settings_and_configuration(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run")).read_text()
    for text in ("Search on burgers from pde", "0.02 against 0.04, 50 % lower", "1,234", "linear Fourier filter"):
        assert text in page
    for text in (
        "xd-1",
        "arch sgd, lr 0.1, warmup 1",
        "versions.torch",
        "task_options.resolution",
        "1 min 5 s",
        "seed",
    ):
        assert text in page


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tests={**FINAL, "<script>x</script>": 0.5})
    page = write_report(folder).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "Linux &lt;x86&gt;" in page
    parsed(page)


def test_markup_and_formulas_in_names_are_plain_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tests={**FINAL, "[bold]$x_$": 0.5})
    assert "[bold]$x_$" in tables(folder)
    assert "[bold]$x_$-0" in write_report(folder).read_text()


def test_same_folder_same_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


@pytest.mark.parametrize(
    ("xd", "backbone", "words"),
    [
        (0.02, 0.04, "beats its backbone pde: test relative L2 0.02 against 0.04, 50 % lower"),
        (0.05, 0.04, "loses to its backbone pde: test relative L2 0.05 against 0.04, 25 % higher"),
        (0.0401, 0.04, "ties with its backbone pde"),
        (0.02, None, "every trial of backbone diverged"),
        (None, None, "every trial of xd and backbone diverged"),
    ],
)
def test_headline_is_honest(tmp_path: Path, xd: float | None, backbone: float | None, words: str) -> None:
    folder = write_run(tmp_path / "run", tests={"backbone": backbone, "frozen": backbone, "xd": xd})
    assert words in tables(folder).replace("\n", " ")


def test_remarks(tmp_path: Path) -> None:
    told = tables(write_run(tmp_path / "run"))
    assert "Best on the test set: fno, 50 % lower than xd." in told
    assert "The frozen supernet ties with the backbone" in told
    assert "One seed" in told
    parted = write_run(tmp_path / "parted", tests={"backbone": 0.04, "frozen": 0.06, "xd": 0.02, "fno": None})
    told = tables(parted)
    assert "The frozen supernet is 50 % higher than the backbone" in told
    assert "Diverged trials: 2 of fno" in told
    worse = tables(write_run(tmp_path / "worse", tests={"backbone": 0.4, "frozen": 0.4, "xd": 0.2}))
    assert "Not better than the trivial predictor 'linear Fourier filter' (0.3): backbone, frozen." in worse


def test_tables(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "trials" / "xd-1" / "result.json").write_text(json.dumps({"status": "stopped", "valid": 1, "seconds": 1}))
    told = tables(folder)
    assert "3 (stopped)" in told
    assert "trivial: input" in told
    rows = [line for line in told.splitlines() if line.startswith("│ xd")]
    assert [row.split("│")[1].strip() for row in rows] == ["xd-0", "xd-1", "xd"]


def test_what_is_told_is_true_of_the_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    terminal, page = " ".join(tables(folder).split()), write_report(folder).read_text()
    assert "Time is of a method's own trials; xd takes the step size" in terminal
    assert "xd takes the step size of the weights that the backbone&#x27;s trials chose" in page
    assert "of the same size" not in page
    alone = tables(write_run(tmp_path / "alone", tests={"backbone": 0.04}, trials=1))
    assert "xd takes" not in alone


def test_a_single_training(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tests={"backbone": 0.04}, trials=1)
    assert "backbone has a test relative L2 of 0.04." in tables(folder)
    page = write_report(folder).read_text()
    assert "Training on burgers" in page
    assert "One seed" not in page


def test_a_run_without_predictions_and_with_unended_curves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tests={"backbone": None, "frozen": None, "xd": None})
    (folder / "predictions.npz").unlink()
    assert parsed(write_report(folder).read_text()).seen.count("svg") == 1


def test_many_layers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tests={"backbone": 0.1, "xd": 0.1}, trials=1)
    rows = folder / "trials" / "xd-0" / "epochs.jsonl"
    layers = {f"_layer{i}.$conv$": {"K": 0.1, "L": 0.2, "M": 0.3, "b": 0.1, "C": 0.0} for i in range(20)}
    epochs = [{**json.loads(line), "distance": layers} for line in rows.read_text().splitlines()]
    rows.write_text("".join(json.dumps(row) + "\n" for row in epochs))
    assert "_layer19.$conv$" in write_report(folder).read_text()


def test_an_older_page_survives_a_broken_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    before = write_report(folder).read_bytes()
    (folder / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"results\.json"):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == before
    assert not list(folder.glob(".report*"))


def test_nothing_of_pyplot_or_of_global_settings(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    write_report(write_run(tmp_path / "run"))
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(
    ("value", "other", "words"),
    [
        (1.0, 1.0, "within 1 % of"),
        (0.0, 0.0, "within 1 % of"),
        (1.005, 1.0, "within 1 % of"),
        (0.5, 1.0, "50 % lower than"),
        (1.5, 1.0, "50 % higher than"),
        (30.0, 1.0, "30 times higher than"),
        (1.0, 0.0, "higher than"),
    ],
)
def test_comparison(value: float, other: float, words: str) -> None:
    assert comparison(value, other) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3.21, "3.2 s"), (48.2, "48 s"), (59.9, "1 min 0 s"), (320, "5 min 20 s"), (7500, "2 h 5 min")],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_trial_without_epochs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_trial(folder, "xd", 2, 0, 0.1)
    (folder / "trials" / "xd-2" / "result.json").unlink()
    assert "xd-2" in tables(folder)
    write_report(folder)
