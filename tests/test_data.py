import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat
from torch import Tensor

from xdnas.tasks.data import cache_folder, cached, data_folder, progress
from xdnas.tasks.matfile import read_mat


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDNAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _numbers() -> dict[str, Tensor]:
    return {"x": torch.arange(6.0).view(2, 3), "y": torch.tensor([1, 2])}


def _never() -> dict[str, Tensor]:
    raise AssertionError("the cache was not read")


def test_data_folder_is_the_argument_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDNAS_DATA", "/nowhere")
    assert data_folder(tmp_path, "X", "R") == tmp_path
    with pytest.raises(FileNotFoundError, match=r"X: '/nowhere' does not exist. R"):
        data_folder(None, "X", "R")
    monkeypatch.delenv("XDNAS_DATA")
    with pytest.raises(FileNotFoundError, match=r"X: no data folder; give data= .* or set XDNAS_DATA. R"):
        data_folder(None, "X", "R")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDNAS_CACHE", "/a")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("XDNAS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/xdnas")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "xdnas"


def test_values_are_made_once_per_settings(own_cache: Path) -> None:
    first = cached("t", {"a": 1}, _numbers)
    second = cached("t", {"a": 1}, _never)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert second["y"].dtype == torch.int64
    cached("t", {"a": 2}, _numbers)
    assert len(list(own_cache.iterdir())) == 2


def test_every_cut_and_every_changed_value_is_noticed(own_cache: Path) -> None:
    cached("t", {}, _numbers)
    (path,) = own_cache.iterdir()
    content = path.read_bytes()
    broken = [content[:n] for n in range(0, len(content), 13)] + [b"hello", content + b"x"]
    broken += [content[:-n] + bytes([content[-n] ^ 4]) + content[len(content) - n + 1 :] for n in range(1, 33)]
    for each in broken:
        path.write_bytes(each)
        with pytest.warns(UserWarning, match=rf"^{re.escape(str(path))} is damaged \(.*\); making it again$"):
            values = cached("t", {}, _numbers)
        assert torch.equal(values["x"], _numbers()["x"])
        assert torch.equal(cached("t", {}, _never)["y"], values["y"])


def test_a_file_of_other_settings_under_this_name_is_not_taken(own_cache: Path) -> None:
    cached("t", {"a": 1}, _numbers)
    (one,) = own_cache.iterdir()
    cached("t", {"a": 2}, lambda: {"x": torch.zeros(1)})
    (two,) = set(own_cache.iterdir()) - {one}
    os.replace(two, one)
    with pytest.warns(UserWarning, match="is damaged"):
        assert torch.equal(cached("t", {"a": 1}, _numbers)["x"], _numbers()["x"])


def test_a_failed_write_leaves_nothing_behind(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        cached("t", {}, _numbers)
    assert list(own_cache.iterdir()) == []


def test_progress_is_quiet_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(progress(3, "counting")) == [0, 1, 2]
    out, err = capfd.readouterr()
    assert out + err == ""


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8", "i2", "u1", "i8"])
def test_version_5_is_read_as_scipy_does(tmp_path: Path, kind: str, compressed: bool) -> None:
    path, rng = tmp_path / "x.mat", np.random.default_rng(0)
    values = {name: (100 * rng.random(size)).astype(kind) for name, size in (("a", (3, 50)), ("u", (2, 1)))}
    others = {"text": "hello", "z": np.ones(2) * 1j, "cell": np.array([1, "b"], dtype=object), "s": {"a": 1}}
    savemat(path, {**others, **values, "a_smooth": values["a"]}, do_compression=compressed)
    wanted, found = loadmat(path), read_mat(path, ("a", "u"), "R")
    for name in values:
        assert np.array_equal(found[name], wanted[name])
        assert np.array_equal(found[name], values[name])


@pytest.mark.parametrize("compressed", [False, True])
def test_every_cut_of_a_file_is_refused(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "x.mat"
    savemat(path, {"a": np.random.default_rng(0).random((3, 5)), "u": np.ones((3, 5))}, do_compression=compressed)
    content = path.read_bytes()
    assert list(read_mat(path, ("a", "u"), "R")) == ["a", "u"]
    for n in range(len(content)):
        path.write_bytes(content[:n])
        with pytest.raises(ValueError, match=r"x.mat (is truncated or no MATLAB file|has no field).* R$"):
            read_mat(path, ("a", "u"), "R")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_bytes_never_do_worse_than_a_refusal(tmp_path: Path, compressed: bool) -> None:
    path, rng = tmp_path / "x.mat", np.random.default_rng(1)
    savemat(path, {"a": rng.random((3, 5)), "u": np.ones((3, 5))}, do_compression=compressed)
    content = path.read_bytes()
    refused = 0
    for _ in range(600):
        damaged = bytearray(content)
        damaged[rng.integers(128, len(content))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read_mat(path, ("a", "u"), "R")
        except ValueError as error:
            refused += str(error).endswith(" R")
    assert refused > 50


def test_a_complex_field_is_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"a": np.ones(3) * 1j, "u": np.ones(3)})
    with pytest.raises(ValueError, match="field a is no array of real numbers"):
        read_mat(tmp_path / "x.mat", ("a", "u"), "R")


def test_version_7_3_without_h5py_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(600))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'xdnas\[hdf5\]'"):
        read_mat(tmp_path / "x.mat", ("a", "u"), "R")
