from pathlib import Path

import numpy as np
import pytest
import torch

from xdnas.tasks import load
from xdnas.tasks.images import FOLDER, flip_and_crop, normalized, permutations, read_batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official layout, filled with noise."""
    root = tmp_path_factory.mktemp("cifar")
    (root / FOLDER).mkdir()
    rng = np.random.default_rng(0)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        records = rng.integers(0, 256, (10_000, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(root / FOLDER / name)
    return root


def test_splits(folder: Path) -> None:
    task = load("cifar10", data=folder, train=100, valid=50, test=30)
    x, y = task.train.tensors
    assert x.shape == (100, 3, 32, 32)
    assert y.dtype == torch.int64
    assert [len(s) for s in (task.train, task.valid, task.test)] == [100, 50, 30]
    again = load(task.name, **task.options)
    assert torch.equal(again.valid.tensors[0], task.valid.tensors[0])
    more = load("cifar10", data=folder, train=120, valid=50, test=30)
    assert torch.equal(more.train.tensors[0][:100], x)
    assert torch.equal(more.valid.tensors[0], task.valid.tensors[0])
    other = load("cifar10", data=folder / FOLDER, train=100, valid=50, test=30, seed=1)
    assert not torch.equal(other.train.tensors[1], y)


def test_options_name_the_folder_of_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("XDNAS_DATA", folder.name)
    task = load("cifar10", train=10, valid=5, test=5)
    monkeypatch.delenv("XDNAS_DATA")
    monkeypatch.chdir(tmp_path)
    assert torch.equal(load(task.name, **task.options).train.tensors[0], task.train.tensors[0])


def test_permuted_images_are_the_same_images(folder: Path) -> None:
    plain, permuted = (load(n, data=folder, train=20, valid=5, test=5) for n in ("cifar10", "cifar10-permuted"))
    rows, columns = permutations(0)
    wanted = plain.train.tensors[0][:, :, rows][..., columns]
    assert torch.equal(permuted.train.tensors[0], wanted)
    assert torch.equal(permuted.test.tensors[0], plain.test.tensors[0][:, :, rows][..., columns])
    assert permuted.augment is None
    assert plain.augment is not None


def test_augmented_images_are_windows_of_the_padded_image_or_its_mirror() -> None:
    x = torch.randn(40, 3, 32, 32)
    y = flip_and_crop(x, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    mirrored = 0
    for i in range(len(x)):
        windows = [
            (f, window)
            for f, image in ((0, padded[i]), (1, padded[i].flip(-1)))
            for r in range(9)
            for c in range(9)
            if torch.equal(window := image[:, r : r + 32, c : c + 32], y[i])
        ]
        assert windows
        mirrored += windows[0][0]
    assert 5 < mirrored < 35
    assert torch.equal(y, flip_and_crop(x, torch.Generator().manual_seed(0)))


def test_real_cifar(data_dir: Path) -> None:
    """Channel means of the 50,000 training images are the known ones."""
    images, labels = read_batches(data_dir / FOLDER, [f"data_batch_{i}.bin" for i in range(1, 6)])
    assert torch.bincount(labels).tolist() == [5000] * 10
    means = images.double().mean((0, 2, 3))
    torch.testing.assert_close(means, torch.tensor([125.30691805, 122.95039414, 113.86538318], dtype=torch.float64))
    assert normalized(images[:1000]).mean().abs() < 0.5
    task = load("cifar10-permuted", data=data_dir, train=2000, valid=500, test=500)
    counts = torch.bincount(task.train.tensors[1], minlength=10)
    assert counts.min() > 140
