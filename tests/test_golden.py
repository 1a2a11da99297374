"""Reference values made with the published code (torch-butterfly), read from $XDNAS_DATA/golden."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xdnas import KMatrix


def read(path: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    with np.load(path) as z:
        meta = json.loads(str(z["meta"]))
        return {k: torch.from_numpy(z[k]) for k in z.files if k != "meta"}, meta


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert (a - b).abs().max() <= 1e-12 * b.abs().max().clamp_min(1)


def test_fourier_twiddles(data_dir: Path) -> None:
    values, meta = read(data_dir / "golden" / "fft_twiddles.npz")
    assert len(meta) == 40
    for case in meta:
        name, n = case["id"], case["n"]
        inverse, reversed_first = case["kind"] == "ifft", case["br_first"]
        k = KMatrix(
            n,
            init="idft" if inverse else "dft",
            normalized=case["normalized"],
            increasing_stride=reversed_first,
            dtype=torch.float64,
        )
        close(k.twiddle, values[f"{name}.twiddle"].reshape(k.twiddle.shape))
        x, order = values[f"x{n}"].to(torch.complex128), values[f"bitrev{n}"]
        assert torch.equal(k.frequencies, order)
        close(k(x), values[f"{name}.y_nobr"])
        close(k(x[:, order]) if reversed_first else k(x)[:, order], values[f"{name}.y_br"])


def test_butterflies(data_dir: Path) -> None:
    values, meta = read(data_dir / "golden" / "butterfly.npz")
    cases = [c for c in meta if c["complex"]][:24]
    assert len(cases) == 24
    for case in cases:
        name = case["id"]
        k = KMatrix.from_twiddle(values[f"{name}.twiddle"][0], increasing_stride=case["increasing_stride"])
        x = values[f"{name}.x"].clone().requires_grad_()
        y = k(x)
        close(k.dense(), values[f"{name}.dense"])
        close(y, values[f"{name}.y"])
        gx, gf = torch.autograd.grad((y * values[f"{name}.cot"].conj()).sum().real, [x, k.factors])
        close(gx, values[f"{name}.gx"])
        close(torch.view_as_complex(gf).view(k.twiddle.shape), values[f"{name}.gtwiddle"][0])
