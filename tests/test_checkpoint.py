"""Only what a swap added is saved, and loads bit for bit into the same network or not at all."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xdnas.checkpoint import CheckpointError, load_architecture, save_architecture
from xdnas.params import named_architecture_parameters
from xdnas.swap import swap


def network(channels: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    shared = nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular")
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), shared, nn.Sequential(shared), nn.BatchNorm2d(channels))


def sample() -> Tensor:
    return torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(1))


def supernet(*, moved: bool = False, channels: int = 4, **options: Any) -> nn.Sequential:
    model = network(channels).eval()
    swap(model, sample(), **options)
    generator = torch.Generator().manual_seed(2)
    if moved:
        with torch.no_grad():
            for _, parameter in named_architecture_parameters(model):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_architecture(supernet(moved=True), tmp_path / "delta.safetensors")
    return tmp_path / "delta.safetensors"


def test_13_outputs_are_bitwise_equal_after_save_and_load(path: Path) -> None:
    twin = supernet()
    load_architecture(twin, path)
    assert torch.equal(twin(sample()), supernet(moved=True)(sample()))
    assert twin.get_submodule("1") is twin.get_submodule("2.0"), "shared layers stay shared (31)"


def test_14_outputs_are_bitwise_equal_in_a_fresh_process(path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch; import test_checkpoint as t\n"
        "m = t.supernet(); t.load_architecture(m, sys.argv[2]); torch.save(m(t.sample()), sys.argv[3])"
    )
    out = path.with_name("out.pt")
    # matrix products sum in another order on another number of threads
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(path), str(out)]
    subprocess.run(command, check=True, env=environment)
    assert torch.equal(torch.load(out, weights_only=True), supernet(moved=True)(sample()))


def test_the_file_holds_the_architecture_alone(path: Path) -> None:
    assert set(load_file(path)) == {name for name, _ in named_architecture_parameters(supernet())}
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["xdnas"])
    assert header["format"] == 1
    assert header["layers"]["1"]["padding_mode"] == "circular"
    assert header["base"]["2.0.weight"] == [4, 4, 3, 3]
    assert not any("factors" in name for name in header["base"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_keep_their_bits_and_are_only_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    model = supernet(moved=True).to(dtype)
    save_architecture(model, tmp_path / "x")
    twin = supernet().to(dtype)
    load_architecture(twin, tmp_path / "x")
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    if dtype == torch.float64:
        with pytest.raises(CheckpointError, match=r"float64 in the file and torch\.float32 in the model"):
            load_architecture(supernet(), tmp_path / "x")
    else:
        load_architecture(supernet(), tmp_path / "x")


def test_47_strided_and_conjugate_parts_are_saved_as_they_read(tmp_path: Path) -> None:
    model = supernet()
    pairs = torch.view_as_real(torch.randn(4, 3, dtype=torch.complex64).conj().resolve_conj())
    model[0].C = nn.Parameter(pairs.transpose(0, 1).contiguous().transpose(0, 1))
    save_architecture(model, tmp_path / "x")
    assert torch.equal(load_file(tmp_path / "x")["0.C"], pairs)


def edit(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> None:
    """Write the file anew with another header or other tensors."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["xdnas"])
    change(header, tensors)
    save_file(tensors, path, {"xdnas": json.dumps(header)})


def refused(model: nn.Module, path: Path, message: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_architecture(model, path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_37_another_base_is_refused_with_both_lists(path: Path) -> None:
    model = nn.Sequential(network(), nn.Conv2d(4, 4, 1))
    swap(model, sample())
    refused(model, path, r"Missing in the file: '0.0', '0.1'. Unexpected in the file: '0'")


def test_another_choice_of_layers_is_refused_with_both_lists(path: Path) -> None:
    refused(supernet(include="0"), path, "XD layers differ. Missing in the file: none. Unexpected in the file: '1'")


def test_another_head_is_refused(path: Path) -> None:
    model = supernet()
    model.add_module("head", nn.Linear(2, 3))
    refused(model, path, "the base network differ. Missing in the file: 'head.weight', 'head.bias'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 2}, r"'0': depth \[1, 1, 1\] in the file, \[2, 2, 2\] in the model"),
        ({"gates": False}, "C True in the file, False in the model"),
        ({"size": "power_of_two"}, r"n \[6, 9\] in the file, \[8, 16\] in the model"),
        ({"channels": 5}, "out_channels 4 in the file, 5 in the model"),
    ],
)
def test_r13_another_geometry_is_refused(path: Path, options: dict[str, Any], message: str) -> None:
    refused(supernet(**options), path, message)


def test_39_files_of_format_1_stay_readable() -> None:
    """fixtures/architecture-1.safetensors is what save_architecture wrote for this network when format 1 was made."""
    model = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1))
    swap(model, torch.randn(1, 1, 6))
    load_architecture(model, Path(__file__).parent / "fixtures" / "architecture-1.safetensors")
    assert {float(p.detach().flatten()[0]) for _, p in named_architecture_parameters(model)} == {0.5, 0.25}


def test_an_unswapped_model_is_told_to_be_swapped(path: Path) -> None:
    refused(network(), path, "no XD layer; call xdnas.swap")


def test_truncated_files_are_refused_wherever_they_end(path: Path) -> None:
    content, model = path.read_bytes(), supernet()
    for size in (0, 4, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        refused(model, path, "is not a safetensors file or is damaged")


def test_foreign_files_are_refused_and_nothing_is_unpickled(path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(path) + ".unpickled",)

    torch.save({"0.b": Bomb()}, path)
    refused(supernet(), path, "is not a safetensors file or is damaged")
    save_file({"0.b": torch.zeros(2)}, path)
    refused(supernet(), path, "but not one of xdnas.save_architecture")
    save_file({"0.b": torch.zeros(2)}, path, {"xdnas": "{"})
    refused(supernet(), path, "its header is no JSON")
    assert not Path(f"{path}.unpickled").exists()


TAMPERED: dict[str, tuple[Callable[[dict[str, Any], dict[str, Tensor]], object], str]] = {
    "future": (lambda h, t: h.update(format=2), "has format 2; this xdnas reads up to 1: update xdnas"),
    "no format": (lambda h, t: h.pop("format"), "names no format number"),
    "no layers": (lambda h, t: h.pop("layers"), "has no 'layers'"),
    "values": (lambda h, t: t["0.b"].add_(1), "its values are not the ones that were saved"),
    "tensor gone": (lambda h, t: t.pop("0.b"), "its values are not the ones that were saved"),
    "shape": (lambda h, t: t.update({"0.b": torch.zeros(3)}), "its values are not the ones that were saved"),
    "layer": (lambda h, t: h["layers"]["0"].update(stride=[2, 2]), r"stride \[2, 2\] in the file"),
    "fingerprint": (lambda h, t: h.update(fingerprint="0"), "its fingerprint is not the one"),
    "base": (lambda h, t: h["base"].update({"3.weight": [9]}), r"'3.weight': shape \[9\] in the file, \[4\]"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_changed_files_and_future_formats_are_refused(path: Path, case: str) -> None:
    change, message = TAMPERED[case]
    edit(path, change)
    refused(supernet(), path, message)


def test_a_full_disk_keeps_the_earlier_file(path: Path) -> None:
    script = (
        "import resource, sys; sys.path.insert(0, sys.argv[1]); import test_checkpoint as t\n"
        "m = t.supernet(); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "t.save_architecture(m, sys.argv[2])"
    )
    before = path.read_bytes()
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "OSError" in result.stderr
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_19_whole_state_dicts_load_with_weights_only(tmp_path: Path) -> None:
    model, twin = supernet(moved=True), supernet()
    torch.save(model.state_dict(), tmp_path / "whole.pt")
    twin.load_state_dict(torch.load(tmp_path / "whole.pt", weights_only=True))
    assert torch.equal(twin(sample()), model(sample()))


def test_values_on_meta_cannot_be_saved_or_filled(path: Path, tmp_path: Path) -> None:
    model = supernet().to("meta")
    with pytest.raises(CheckpointError, match="on the meta device and have no values"):
        save_architecture(model, tmp_path / "x")
    with pytest.raises(CheckpointError, match="give the model memory first"):
        load_architecture(model, path)
