"""Searches behind the accuracy tables: each is one call of `xdnas.search.search`, kept with its configuration.

    python benchmarks/accuracy.py lenet --work DIR [--data DIR]     # resumes what DIR already holds
    python benchmarks/accuracy.py burgers --seed 1 --work DIR

A finished search is written to benchmarks/results/<name>.md, beside the published figures at full scale.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

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


def markdown(experiment: Experiment, folder: Path) -> str:
    """The table of a finished run, with everything that is needed to run it again."""
    results = json.loads((folder / "results.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    config["task_options"].pop("data", None)
    lines = [
        f"# {experiment.title}",
        "",
        f"Scale: {experiment.scale} One seed ({config['seed']}); {experiment.trials} trials for each tuned method, the "
        f"best by validation. Test {results['metric']}, lower is better. Seconds are wall time, two trials at once, "
        "on a machine that had other work to do: upper bounds.",
        "",
        f"| method | test {results['metric']} | validation | trials | seconds of its trials | parameters |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for m in results["methods"]:
        cost = f"{m['trials']} | {m['seconds']:.0f} | {m['parameters']:,}"
        lines.append(f"| {m['name']} | {_number(m['test'])} | {_number(m['valid'])} | {cost} |")
    lines += [f"| trivial: {name} | {value:.4f} | | | | |" for name, value in results["baselines"].items()]
    lines += ["", f"Whole search: {results['search_seconds']:.0f} s. Settings of the best trials:", ""]
    lines += [f"- {m['name']}: {json.dumps(m['settings'])}" for m in results["methods"]]
    if experiment.published:
        lines += ["", f"Published, at full scale: {experiment.published}"]
    lines += ["", "Configuration:", "", "```json", json.dumps(config, indent=1), "```", ""]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints, outside the repository")
    parser.add_argument("--data", help="folder with the original data; default $XDNAS_DATA")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    experiment = EXPERIMENTS[given.name]
    folder = given.work / f"{given.name}-{given.seed}"
    search(
        experiment.task,
        experiment.backbone,
        trials=experiment.trials,
        epochs=experiment.epochs,
        seed=given.seed,
        out=folder,
        resume=(folder / "config.json").is_file(),
        data=given.data,
        task_options=experiment.options,
    )
    suffix = f"-seed{given.seed}" if given.seed else ""
    path = RESULTS / f"{given.name}{suffix}.md"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(markdown(experiment, folder))
    partial.replace(path)


if __name__ == "__main__":
    main()
