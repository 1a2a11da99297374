"""The pictures of a report as SVG: text and grid take the colour of the page, methods have colours of their own."""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from xdnas.search.record import Array, Record
from xdnas.search.runfolder import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"backbone": "#7a8794", "frozen": "#2f9e8f", "xd": "#d9622b", "fno": "#7b68c8"}
# drawn over the backbone, which it ties with
_DASHED = {"frozen": (0, (3, 3))}
_OTHERS = ("#c2913b", "#4f8fd0", "#b4587e")
# layers of a small network have colours that can be told apart, those of a large one shades
_LAYERS = (*COLOURS.values(), *_OTHERS)
# stands for the colour of the page's text until the picture is text itself
_INK = "#010203"
_WIDTH = 4.8
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlesize": 9,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.solid_capstyle": "round",
}


def colour(name: str, names: Sequence[str]) -> str:
    """Colour of a method among all of a run."""
    others = [other for other in names if other not in COLOURS]
    return COLOURS[name] if name in COLOURS else _OTHERS[others.index(name) % len(_OTHERS)]


def curves(record: Record) -> str:
    """Validation metric over epochs, a line per trial; the best trial of every method is thick and named."""
    names = [entry["name"] for entry in record.methods]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for name in names:
            best = record.best(name)
            for trial in (t for t in record.trials if t.method == name and t.epochs):
                _curve(axes, trial, colour(name, names), best is not None and trial.name == best.name)
        values = [row["valid"] for trial in record.trials for row in trial.epochs]
        if values and min(values) > 0:
            axes.set_yscale("log")
            _plain_ticks(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"validation {record.results['metric']}")
        _whole_epochs(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()

    return _svg(draw, 3.1, "Validation metric over epochs")


def _curve(axes: "Axes", trial: Trial, tint: str, best: bool) -> None:
    epochs, values = ([row[key] for row in trial.epochs] for key in ("epoch", "valid"))
    look: dict[str, Any] = {"linewidth": 2.2, "label": trial.name} if best else {"linewidth": 0.9, "alpha": 0.5}
    style = _DASHED.get(trial.method, "-")
    axes.plot(epochs, values, color=tint, linestyle=style, zorder=3 if best else 2, marker="o", markersize=2, **look)


def _whole_epochs(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.margins(x=0.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _plain_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def distance_bars(distance: dict[str, dict[str, float]]) -> str:
    """How far K, L, M (and b, C) of every layer are from the start, as bars from the first layer down."""
    layers = list(distance)
    parts = [part for part in "KLMbC" if any(part in row for row in distance.values())]
    tints = dict(zip("KLMbC", ("#d9622b", "#4f8fd0", "#2f9e8f", "#c2913b", "#7b68c8"), strict=True))
    height = 0.8 / max(len(parts), 1)

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, part in enumerate(parts):
            rows = np.arange(len(layers)) + (place - (len(parts) - 1) / 2) * height
            axes.barh(rows, [distance[layer].get(part, 0.0) for layer in layers], height, color=tints[part], label=part)
        axes.set_yticks(range(len(layers)), layers)
        axes.invert_yaxis()
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("distance from the start")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=len(parts))

    return _svg(draw, 1.2 + 0.16 * len(layers) * max(len(parts), 1), "Distance from the start per layer")


def distance_curves(trial: Trial) -> str:
    """Largest distance of K, L and M from the start over the epochs of a trial, a line per layer."""
    layers = list(trial.epochs[-1]["distance"])

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        few = len(layers) <= len(_LAYERS)
        shades = np.ones(len(layers)) if few else np.linspace(0.3, 1.0, len(layers))
        tints = _LAYERS[: len(layers)] if few else [COLOURS["xd"]] * len(layers)
        for layer, tint, shade in zip(layers, tints, shades, strict=True):
            rows = [row["distance"].get(layer, {}) for row in trial.epochs]
            values = [max((row[part] for part in "KLM" if part in row), default=0.0) for row in rows]
            epochs = [row["epoch"] for row in trial.epochs]
            axes.plot([0, *epochs], [0.0, *values], color=tint, alpha=float(shade), linewidth=1.4, label=layer)
        axes.set_xlabel(f"epoch of {trial.name}")
        axes.set_ylabel("largest distance of K, L, M")
        _whole_epochs(axes)
        if few:
            axes.legend()

    return _svg(draw, 3.1, "Distance from the start over epochs")


def predictions(record: Record) -> list[str]:
    """Solutions on an interval: truth and predictions above, the error of every method below; one picture a sample."""
    arrays = record.predictions
    truth = _lines(arrays["truth"]) if arrays else None
    if truth is None:
        return []
    names = [entry["name"] for entry in record.methods if entry["name"] in arrays]
    shown = {name: _lines(arrays[name]) for name in names if arrays[name].shape == arrays["truth"].shape}
    start = _lines(arrays["x"][:, :1]) if arrays["x"].ndim == 3 else None
    return [
        _prediction(
            truth[i], {n: v[i] for n, v in shown.items() if v is not None}, None if start is None else start[i], i
        )
        for i in range(len(truth))
    ]


def _lines(array: Array) -> Array | None:
    """(N, size) or (N, 1, size) as (N, size); None for anything else."""
    flat = array[:, 0] if array.ndim == 3 and array.shape[1] == 1 else array
    return flat if flat.ndim == 2 and flat.shape[1] > 1 else None


def _prediction(truth: Array, shown: dict[str, Array], start: Array | None, sample: int) -> str:
    place = np.arange(len(truth)) / len(truth)

    def draw(figure: "Figure") -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        if start is not None and len(start) == len(truth):
            above.plot(place, start, color=_INK, linewidth=1.2, linestyle=":", alpha=0.8, label="input")
        above.plot(place, truth, color=_INK, linewidth=2.4, alpha=0.3, label="truth")
        for name, values in shown.items():
            look: dict[str, Any] = {"color": colour(name, list(shown)), "linestyle": _DASHED.get(name, "-")}
            above.plot(place, values, linewidth=1.1, **look)
            below.plot(place, values - truth, linewidth=0.9, label=name, **look)
        below.axhline(0.0, color=_INK, linewidth=0.4)
        above.set_title(f"test sample {sample + 1}", loc="left")
        above.set_ylabel("solution")
        below.set_ylabel("error")
        below.set_xlabel("position / length")
        figure.legend(loc="outside lower center", ncols=min(3, len(shown) + 2))

    return _svg(draw, 3.8, f"Predicted solution of test sample {sample + 1} and its error")


def _svg(draw: Any, height: float, title: str) -> str:
    """Draw on a figure without pyplot and give it as SVG to stand in a page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), title)


def _inline(document: str, title: str) -> str:
    text = document[document.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    # ids of groups are the same in every picture, and nothing refers to them
    text = re.sub(r' id="[a-zA-Z0-9]+_\d+"', "", text)
    # the page scales the picture to its column
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    head = f'<svg role="img" aria-label="{escape(title)}"'
    return text.replace("<svg", head, 1).replace(_INK, "currentColor")
