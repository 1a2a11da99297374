"""The outcome of a run in words: what won, by how much, and how sure that is."""

from collections.abc import Mapping
from typing import Any

from xdnas.search.record import Record

# methods closer than this, relative to each other, are told as equal
TIE = 0.01
MEANING = {
    "backbone": "the network as it is",
    "frozen": "its XD-operations left at their start, which is the backbone's own function",
    "xd": "its XD-operations trained: the searched supernet",
    "fno": "the Fourier neural operator of the same width and depth",
}
# what the times of the methods are
TIMES = "Time is of a method's own trials"
SHARED = "xd takes the step size of the weights that the backbone's trials chose, so these are a part of its price"


def number(value: float | None) -> str:
    """Four digits; a word for what is no number."""
    return "diverged" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Time as a person says it: "48 s", "5 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def settings(values: Mapping[str, Any]) -> str:
    """Settings of a trial in one line, those of the architecture's optimizer together: "lr 0.001; arch sgd, lr 0.1"."""
    weights = [f"{name} {_plain(value)}" for name, value in values.items() if not name.startswith("arch_")]
    arch = {name.removeprefix("arch_"): value for name, value in values.items() if name.startswith("arch_")}
    if arch.get("optimizer") == "adam":
        arch.pop("momentum", None)
    own = [str(value) if name == "optimizer" else f"{name} {_plain(value)}" for name, value in arch.items()]
    parts = [", ".join(weights)] if weights else []
    return "; ".join([*parts, f"arch {', '.join(own)}"] if own else parts) or "-"


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rank(value: float, other: float) -> int:
    """-1 if a test metric is lower than another, which is better; 1 if it is higher, 0 if they are as good as equal."""
    if value == other or abs(value - other) < TIE * max(abs(value), abs(other)):
        return 0
    return -1 if value < other else 1


def comparison(value: float, other: float) -> str:
    """One test metric against another in words: "39 % lower than", "within 1 % of", ..."""
    order = rank(value, other)
    if order == 0:
        return "within 1 % of"
    if order < 0:
        return f"{_percent(1 - value / other)} lower than"
    return f"{_percent(value / other - 1)} higher than" if other > 0 else "higher than"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share < 10 else f"{share + 1:.3g} times"


def headline(record: Record) -> str:
    """One sentence: the searched supernet against the backbone, or the only method that there is."""
    results, metric = record.results, record.results["metric"]
    xd, backbone = record.method("xd"), record.method("backbone")
    if xd is None or backbone is None:
        return " ".join(_alone(entry, metric) for entry in record.methods)
    if xd["test"] is None or backbone["test"] is None:
        gone = " and ".join(entry["name"] for entry in (xd, backbone) if entry["test"] is None)
        return f"No comparison: every trial of {gone} diverged."
    if _by_chance(record, xd["test"], backbone["test"]):
        return (
            f"The searched supernet and its backbone {results['backbone']} are no further apart than two runs of one "
            f"function: test {metric} {number(xd['test'])} against {number(backbone['test'])}."
        )
    order, difference = rank(xd["test"], backbone["test"]), comparison(xd["test"], backbone["test"])
    verb = {-1: "beats", 0: "ties with", 1: "loses to"}[order]
    figures = f"test {metric} {number(xd['test'])} against {number(backbone['test'])}"
    amount = difference.removesuffix(" than") if order else "within 1 % of each other"
    return f"The searched supernet {verb} its backbone {results['backbone']}: {figures}, {amount}."


def _by_chance(record: Record, xd: float, backbone: float) -> bool:
    """Whether the frozen supernet, which computes what the backbone does, is further from it than the searched one."""
    frozen = record.method("frozen")
    if frozen is None or frozen["test"] is None:
        return False
    chance = abs(float(frozen["test"]) - backbone)
    return chance > 0 and abs(xd - backbone) <= chance


def _alone(entry: Mapping[str, Any], metric: str) -> str:
    if entry["test"] is None:
        return f"{entry['name']} diverged."
    return f"{entry['name']} has a test {metric} of {number(entry['test'])}."


def remarks(record: Record) -> list[str]:
    """What else a reader must know: the best method, the frozen supernet, trivial predictors, diverged trials, cost."""
    sentences = [*_best(record), *_frozen(record), *_trivial(record)]
    diverged = [f"{entry['diverged']} of {entry['name']}" for entry in record.methods if entry.get("diverged")]
    if diverged:
        sentences.append(f"Diverged trials: {', '.join(diverged)}.")
    total = duration(record.results["search_seconds"])
    sentences.append(f"Everything took {total}: {len(record.trials)} trial{'s' * (len(record.trials) != 1)}.")
    if record.method("xd") and record.method("backbone"):
        sentences.append("One seed: how much another would change is not known from this run.")
    return sentences


def times(record: Record) -> str:
    """What the times in the table of the methods are."""
    return f"{TIMES}; {SHARED}." if record.method("xd") and record.method("backbone") else f"{TIMES}."


def _best(record: Record) -> list[str]:
    ranked = sorted((e for e in record.methods if e["test"] is not None), key=lambda entry: float(entry["test"]))
    if len(ranked) < 2:
        return []
    first, second = ranked[:2]
    difference = comparison(first["test"], second["test"])
    if rank(first["test"], second["test"]):
        return [f"Best on the test set: {first['name']}, {difference} {second['name']}."]
    return [f"Best on the test set: {first['name']} and {second['name']}, {difference} each other."]


def _frozen(record: Record) -> list[str]:
    frozen, backbone = record.method("frozen"), record.method("backbone")
    if not (frozen and backbone) or frozen["test"] is None or backbone["test"] is None:
        return []
    difference = comparison(frozen["test"], backbone["test"])
    if rank(frozen["test"], backbone["test"]) == 0:
        return ["The frozen supernet ties with the backbone, as it must: it is the same function."]
    return [
        f"The frozen supernet is {difference} the backbone. Both are the same function at the start and train alike; "
        "only rounding parts them, so a difference of this size between other methods may be chance too."
    ]


def _trivial(record: Record) -> list[str]:
    baselines = record.results["baselines"]
    if not baselines:
        return []
    name = min(baselines, key=lambda key: float(baselines[key]))
    worse = [e["name"] for e in record.methods if e["test"] is not None and e["test"] >= baselines[name]]
    if worse:
        return [f"Not better than the trivial predictor {name!r} ({number(baselines[name])}): {', '.join(worse)}."]
    return [f"The best trivial predictor, {name!r}, has {number(baselines[name])}."]
