"""The protocol of a pre-trained image network, on weights and pictures that are made up."""

import dataclasses
import gzip
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.continual import images
from benchmarks.continual.command import run_once
from benchmarks.continual.protocols import PROTOCOLS

KERNELS, STRIDES = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3), (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
WIDTHS = (4, 4, 4, 6, 6, 8, 8, 8, 8, 8, 8, 10, 10, 10, 10, 12)


def _made_up() -> dict[str, Tensor]:
    """Gives tensors by the names of the real ones, of a thinner network."""
    torch.manual_seed(0)
    found: dict[str, Tensor] = {}

    def add(name: str, norm: str, *shape: int) -> None:
        found[f"{name}.weight"] = torch.randn(shape) / np.sqrt(np.prod(shape[1:]))
        for part in ("weight", "running_var"):
            found[f"{norm}.{part}"] = torch.rand(shape[0]) + 0.5
        for part in ("bias", "running_mean"):
            found[f"{norm}.{part}"] = torch.randn(shape[0])

    add("_conv_stem", "_bn0", 6, 3, 3, 3)
    before = 6
    for number, (kernel, width) in enumerate(zip(KERNELS, WIDTHS, strict=True)):
        own, inner = f"_blocks.{number}.", 2 * before if number else before
        if number:
            add(f"{own}_expand_conv", f"{own}_bn0", inner, before, 1, 1)
        add(f"{own}_depthwise_conv", f"{own}_bn1", inner, 1, kernel, kernel)
        add(f"{own}_project_conv", f"{own}_bn2", width, inner, 1, 1)
        before = width
    add("_conv_head", "_bn1", 16, before, 1, 1)
    return found


def _reference(own: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """Computes the features step by step, with each normalization by itself."""

    def step(hidden: Tensor, name: str, norm: str, stride: int = 1, is_last: bool = False) -> Tensor:
        kernel = own[f"{name}.weight"]
        size = hidden.shape[2]
        pad = max((-(-size // stride) - 1) * stride + kernel.shape[2] - size, 0)  # "SAME" of TensorFlow
        groups = len(kernel) if kernel.shape[1] == 1 else 1
        hidden = functional.pad(hidden, (pad // 2, pad - pad // 2) * 2)
        hidden = functional.conv2d(hidden, kernel, stride=stride, groups=groups)
        parts = [own[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        hidden = functional.batch_norm(hidden, *parts, eps=1e-3)
        return hidden if is_last else functional.relu6(hidden)

    hidden = step(hidden, "_conv_stem", "_bn0", 2)
    for number, stride in enumerate(STRIDES):
        name, inputs = f"_blocks.{number}.", hidden
        if number:
            hidden = step(hidden, f"{name}_expand_conv", f"{name}_bn0")
        hidden = step(hidden, f"{name}_depthwise_conv", f"{name}_bn1", stride)
        hidden = step(hidden, f"{name}_project_conv", f"{name}_bn2", is_last=True)
        hidden = hidden + inputs if hidden.shape == inputs.shape else hidden
    return step(hidden, "_conv_head", "_bn1").mean(dim=(2, 3))


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    found = _made_up()
    monkeypatch.setattr(images, "read_weights", lambda: found)
    return found


def _write_pictures(folder: Path, part: str, num_per_class: int) -> None:
    labels = np.arange(4 * num_per_class, dtype=np.uint8) % 4
    pictures = np.zeros((len(labels), 28, 28), np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        picture[7 * label : 7 * label + 7] = 255
    folder.mkdir(exist_ok=True)
    for name, header, content in (("images-idx3", 16, pictures), ("labels-idx1", 8, labels)):
        (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + content.tobytes()))


def test_folded_normalizations_compute_what_the_network_does(weights: dict[str, Tensor]) -> None:
    pictures = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        found = images.UpperBlocks(4).base_model(images.lower(weights)(pictures))
        torch.testing.assert_close(found, _reference(weights, pictures), rtol=1e-4, atol=1e-5)


def test_methods_run_on_what_the_frozen_blocks_gave(weights, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path))
    for part, count in (("train", 9), ("t10k", 5)):
        _write_pictures(tmp_path / "fashion-mnist", part, count)
    tasks = images.fashion(tmp_path, 1, num_train=8, num_test=4)
    assert [(len(task.train), len(task.evaluation)) for task in tasks] == [(16, 8)] * 2
    small = dataclasses.replace(
        PROTOCOLS["fashion-pretrained"],
        sequence=lambda folder, seed: tasks,
        model=lambda seed, folder: images.UpperBlocks(4),
    )
    found = {
        name: run_once(small, name, 8, 1, tmp_path, tmp_path) for name in ("er-reservoir", "head-alone", "ran-pac")
    }
    assert found["ran-pac"]["average_accuracy"] == 100.0  # stripes at four heights
    assert found["er-reservoir"]["kept_bytes"] >= 8 * 785
    assert all(0 <= one["average_accuracy"] <= 100 for one in found.values())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ModuleNotFoundError) as caught:
        images.read_weights()
    assert caught.value.name == "no_such_package_of_weights"
