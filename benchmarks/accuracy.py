"""Searches behind the accuracy tables: each is one call of `xdnas.search.search`, kept with its configuration.

    python benchmarks/accuracy.py lenet --work DIR [--data DIR]     # resumes what DIR already holds
    python benchmarks/accuracy.py burgers --seeds 0 1 2 --work DIR

A finished search is written to benchmarks/results/<name>.md, beside the published figures at full scale.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from xdnas.files import write_atomic
from xdnas.search import search

RESULTS = Path(__file__).parent / "results"


class Experiment(NamedTuple):
    title: str
    task: str
    backbone: str
    options: dict[str, Any]
    trials: int
    epochs: int
    scale: str
    published: str


PERMUTED = "cifar10-permuted"
PUBLISHED = (
    "test error of the backbone {}, of XD {}: 50,000 images, 200 epochs, mean of three seeds (Roberts et al. 2021, "
    "Table 1; quoted from memory, not checked against the paper for this table)."
)
EXPERIMENTS = {
    "burgers": Experiment(
        "Burgers' equation, resolution 256",
        "burgers",
        "pde",
        {},
        4,
        20,
        "256 generated training functions, 20 epochs; the paper has 1000 and 500 epochs on its own data.",
        "not comparable: other data, 500 epochs",
    ),
    "lenet": Experiment(
        "LeNet on permuted CIFAR-10",
        PERMUTED,
        "lenet",
        {},
        4,
        25,
        "45,000 training images, 5,000 for validation, 25 epochs; the paper trains on 50,000 for 200 epochs, grows the "
        "kernels and replaces the pooling layers too.",
        PUBLISHED.format("0.563 +- 0.005", "0.370 +- 0.010"),
    ),
    "resnet20": Experiment(
        "ResNet-20 on permuted CIFAR-10",
        PERMUTED,
        "resnet20",
        {"train": 4000, "valid": 1000},
        4,
        6,
        "4,000 training images and 6 epochs; the paper has 50,000 and 200.",
        PUBLISHED.format("0.414 +- 0.007", "0.265 +- 0.016"),
    ),
}


def markdown(experiment: Experiment, folders: list[Path]) -> str:
    """The table of finished runs, one for each seed, with everything that is needed to run them again."""
    runs = [json.loads((folder / "results.json").read_text()) for folder in folders]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    for config in configs:
        config["task_options"].pop("data", None)
    metric, seeds = runs[0]["metric"], ", ".join(str(run["seed"]) for run in runs)
    seconds = ", ".join(f"{run['search_seconds']:.0f}" for run in runs)
    lines = [
        f"# {experiment.title}",
        "",
        f"Scale: {experiment.scale} {experiment.trials} trials for each tuned method, the best by validation. "
        f"Seeds {seeds}. Test {metric}, lower is better. Seconds are wall time of a method's trials, two at once, on a "
        "machine that had other work to do: upper bounds.",
        "",
        f"| method | test {metric} | of each seed | trials | seconds | parameters |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row([run["methods"][i] for run in runs]) for i in range(len(runs[0]["methods"]))),
        *(f"| trivial: {name} | {value:.4f} | | | | |" for name, value in runs[0]["baselines"].items()),
        "",
        f"Whole search: {seconds} s. Settings of the best trials:",
        "",
        *(f"- seed {run['seed']}, {m['name']}: {json.dumps(m['settings'])}" for run in runs for m in run["methods"]),
    ]
    if experiment.published:
        lines += ["", f"Published, at full scale: {experiment.published}"]
    return "\n".join([*lines, "", "Configuration:", "", "```json", json.dumps(configs[0], indent=1), "```", ""])


def _row(entries: list[dict[str, Any]]) -> str:
    tests = [m["test"] for m in entries]
    each = ", ".join("diverged" if test is None else f"{test:.4f}" for test in tests)
    mean = "diverged" if None in tests else f"{statistics.mean(tests):.4f}"
    spread = f" +- {statistics.stdev(tests):.4f}" if len(tests) > 1 and None not in tests else ""
    seconds = ", ".join(f"{m['seconds']:.0f}" for m in entries)
    first = entries[0]
    return f"| {first['name']} | {mean}{spread} | {each} | {first['trials']} | {seconds} | {first['parameters']:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints, outside the repository")
    parser.add_argument("--data", help="folder with the original data; default $XDNAS_DATA")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    experiment = EXPERIMENTS[given.name]
    folders = [given.work / f"{given.name}-{seed}" for seed in given.seeds]
    for seed, folder in zip(given.seeds, folders, strict=True):
        search(
            experiment.task,
            experiment.backbone,
            trials=experiment.trials,
            epochs=experiment.epochs,
            seed=seed,
            out=folder,
            resume=(folder / "config.json").is_file(),
            data=given.data,
            task_options=experiment.options,
        )
    RESULTS.mkdir(exist_ok=True)
    write_atomic(RESULTS / f"{given.name}.md", markdown(experiment, folders))


if __name__ == "__main__":
    main()
