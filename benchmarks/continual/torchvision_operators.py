"""Lets torchvision be imported beside a torch that was built without CUDA.

The wheels of torchvision on PyPI are built for CUDA. Beside a torch for CPUs their compiled operators cannot be loaded,
and the import ends in "operator torchvision::nms does not exist". Avalanche imports torchvision but needs none of the
operators for replay: declaring the two that the import asks for is enough, and nothing that is measured calls them.
"""

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # what is declared goes with the object that declared it


def define_operators() -> None:
    """Declares the operators, where torch has no CUDA."""
    if torch.version.cuda is None and not _kept:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + _SIGNATURE)
        _kept.append(library)
