"""How much more a probed step holds at its peak than a plain one."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import Mlp, build, vector_case
from tests.mixer.gradients.probe.reference import Case

NUM_STREAMS = 4


class _Peak(TorchDispatchMode):
    """Adds up the storages that operations have made and that still live."""

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                storage = leaf.untyped_storage()
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._live = {key: one for key, one in self._live.items() if not one[0].expired()}
        self.num_bytes = max(self.num_bytes, sum(size for _, size in self._live.values()))
        return result


def _peak(case: Case, probe: GradientProbe | None = None) -> int:
    case.model.zero_grad()
    with _Peak() as peak:
        if probe is not None:
            probe.start(case.stream_ids, case.items)
        case.loss().backward()
        if probe is not None:
            probe.finish()
    return peak.num_bytes


def _bytes(model: nn.Module) -> list[int]:
    return [parameter.numel() * 4 for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"mode": "sketch", "sketch_size": 8}, {"exact_accumulate": True}])
def test_a_probe_holds_the_pieces_of_one_layer_and_one_that_accumulates_the_streams_gradients(
    options: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    case = vector_case(Mlp(8, 96, 96, 96, 96, 8), [0, 1, 2, 3] * 4, 8, 8, num_streams=NUM_STREAMS)
    largest, whole = max(_bytes(case.model)), sum(_bytes(case.model))
    # Of vectors, what each row has of them is kept until the backward has ended.
    of_rows = 4 * case.num_rows * sum(one.numel() for one in case.model.parameters() if one.dim() == 1)
    probe = GradientProbe(case.model, NUM_STREAMS, **options)
    plain, first, extra = _peak(case), _peak(case, probe), _peak(case, probe)
    if "exact_accumulate" in options:
        assert 0.9 * NUM_STREAMS * whole < extra - plain < 1.6 * NUM_STREAMS * whole
    else:
        assert extra - plain < 1.4 * NUM_STREAMS * largest + of_rows
    if not options:  # the first compares pieces with the whole
        assert first - plain < 2.5 * NUM_STREAMS * largest


def test_a_language_model_with_a_tied_head() -> None:
    case = build("llama-tied")
    assert _peak(case, GradientProbe(case.model, 3)) < 2 * _peak(case)
