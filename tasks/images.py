"""CIFAR-10, and CIFAR-10 with its rows and columns permuted, from the official binary files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from xdnas.tasks.data import check_counts, check_seed, data_folder
from xdnas.tasks.metrics import ERROR, cross_entropy
from xdnas.tasks.task import Recipe, Task

FOLDER = "cifar-10-batches-bin"
RECORD, IMAGES = 1 + 3 * 32 * 32, 10_000
REMEDY = (
    "Download https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz and unpack it there; "
    f"the folder then holds {FOLDER}/data_batch_1.bin and so on"
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Roberts et al. 2021, appendix: step sizes and schedules over 200 epochs
_LENET = {"optimizer": "sgd", "lr": 0.01, "milestones": ((0.5, 0.5), (0.75, 0.1))}
_RESNET = {"optimizer": "sgd", "lr": 0.1, "milestones": ((0.5, 0.1), (0.75, 0.01))}
_COMMON = {"momentum": 0.9, "weight_decay": 1e-4, "batch_size": 128, "swap_options": {"depth": 3}}


def recipes(permuted: bool) -> Mapping[str, Recipe]:
    """The published settings for LeNet and ResNet-20."""
    arch_lr = 1e-3 if permuted else 1e-4
    lenet = Recipe(**_LENET, **_COMMON, arch_lr=arch_lr)  # type: ignore[arg-type]
    warmup = 0.0 if permuted else 0.25
    return {"lenet": lenet, "resnet20": Recipe(**_RESNET, **_COMMON, arch_lr=arch_lr, arch_warmup=warmup)}  # type: ignore[arg-type]


def read_batches(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) uint8 and labels (N,) int64 of official binary files.

    Raises:
        FileNotFoundError, ValueError: a file is missing, has another size, or a label above 9.
    """
    images, labels = [], []
    for name in names:
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"CIFAR-10: {path} is missing. {REMEDY}")
        raw = np.fromfile(path, dtype=np.uint8)
        if raw.size != RECORD * IMAGES:
            raise ValueError(f"CIFAR-10: {path} has {raw.size} bytes, not {RECORD * IMAGES}: it is damaged. {REMEDY}")
        records = raw.reshape(IMAGES, RECORD)
        if records[:, 0].max() > 9:
            raise ValueError(f"CIFAR-10: {path} has the label {records[:, 0].max()}, allowed are 0 to 9. {REMEDY}")
        labels.append(torch.from_numpy(records[:, 0].astype(np.int64)))
        images.append(torch.from_numpy(records[:, 1:].copy()).view(-1, 3, 32, 32))
    return torch.cat(images), torch.cat(labels)


def permutations(seed: int) -> tuple[Tensor, Tensor]:
    """One permutation of the 32 rows and one of the 32 columns, fixed by the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(32, generator=generator), torch.randperm(32, generator=generator)


def normalized(images: Tensor) -> Tensor:
    """uint8 to float32 with ImageNet's mean and deviation per channel."""
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, DEVIATION))
    # in place: the whole training set is 553 MB
    return images.float().div_(255).sub_(mean).div_(deviation)


def flip_and_crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Random mirror images and random 32 x 32 windows of the image with 4 zeros around it: (N, 3, 32, 32).

    The generator is on the images' device.
    """
    count, device = len(x), x.device
    flips = torch.rand(count, generator=generator, device=device) < 0.5
    shifts = torch.randint(0, 9, (2, count, 1), generator=generator, device=device)
    steps = torch.arange(32, device=device)
    rows, columns = shifts[0] + steps, shifts[1] + steps
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4)).movedim(1, -1)
    each = torch.arange(count, device=device)[:, None, None]
    return padded[each, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def load(
    *,
    data: str | os.PathLike[str] | None = None,
    seed: int = 0,
    train: int = 45_000,
    valid: int = 5_000,
    test: int = 10_000,
    permuted: bool = False,
) -> Task:
    """Inputs (N, 3, 32, 32) float32, targets (N,) int64; metric: fraction of wrong answers.

    The 50,000 training images are shuffled by the seed; the validation set is the last `valid` of them, the training
    set the first `train`. Plain images are mirrored and cropped at random during training, permuted ones are not.

    Args:
        data: folder that holds cifar-10-batches-bin (or is it); default $XDNAS_DATA.
        seed: of the shuffle and of the permutations.
        train, valid, test: numbers of images; fewer test images are the first of a shuffle.

    Raises:
        FileNotFoundError, ValueError: the files are missing or damaged, or the numbers too large.
    """
    check_counts("CIFAR-10", {"train": train, "valid": valid, "test": test})
    check_seed("CIFAR-10", seed)
    if train + valid > 50_000 or test > 10_000:
        raise ValueError(f"CIFAR-10: train {train} + valid {valid} must be at most 50000 and test {test} at most 10000")
    root = data_folder(data, "CIFAR-10", REMEDY)
    folder = root if root.name == FOLDER else root / FOLDER
    counts = {"train": train, "valid": valid, "test": test}
    sets = _splits(folder, counts, seed, permutations(seed) if permuted else None)
    # workers of a search may run in another folder, or without $XDNAS_DATA
    options: dict[str, Any] = {"data": str(root.absolute()), "seed": seed, **counts}
    return Task(
        sets["train"],
        sets["valid"],
        sets["test"],
        cross_entropy,
        ERROR,
        "cifar10-permuted" if permuted else "cifar10",
        options=options,
        augment=None if permuted else flip_and_crop,
        baselines={"most frequent class": _most_frequent(sets["train"], sets["test"])},
        backbone="lenet",
        recipes=recipes(permuted),
    )


def _splits(
    folder: Path, counts: Mapping[str, int], seed: int, permutation: tuple[Tensor, Tensor] | None
) -> dict[str, TensorDataset]:
    known, labels = read_batches(folder, [f"data_batch_{i}.bin" for i in range(1, 6)])
    unknown, answers = read_batches(folder, ["test_batch.bin"])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(known), generator=generator)
    held = torch.randperm(len(unknown), generator=generator)[: counts["test"]].sort().values

    def dataset(images: Tensor, targets: Tensor, chosen: Tensor) -> TensorDataset:
        images = images[chosen]
        if permutation is not None:
            images = images[:, :, permutation[0]][..., permutation[1]]
        return TensorDataset(normalized(images), targets[chosen])

    return {
        "train": dataset(known, labels, order[: counts["train"]]),
        "valid": dataset(known, labels, order[len(order) - counts["valid"] :]),
        "test": dataset(unknown, answers, held),
    }


def _most_frequent(train: TensorDataset, test: TensorDataset) -> float:
    """Test error of always giving the class that is most frequent in training."""
    guess = train.tensors[1].mode().values
    return float((test.tensors[1] != guess).double().mean())
