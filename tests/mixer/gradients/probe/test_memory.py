"""How much more a probed step holds at its peak than a plain one."""

from typing import Any

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


def _peak(case: Case, probe: GradientProbe | None) -> int:
    case.model.zero_grad()
    with _Peak() as peak:
        if probe is not None:
            probe.start(case.stream_ids, case.items)
        case.loss().backward()
        if probe is not None:
            probe.finish()
    return peak.num_bytes


def _extra(case: Case, probe: GradientProbe) -> int:
    plain = _peak(case, None)
    _peak(case, probe)  # the first compares pieces with the whole
    return _peak(case, probe) - plain


def _case() -> Case:
    torch.manual_seed(0)
    return vector_case(Mlp(8, 96, 96, 96, 96, 8), [0, 1, 2, 3] * 4, 8, 8, num_streams=NUM_STREAMS)


def _largest(model: nn.Module) -> int:
    return max(parameter.numel() for parameter in model.parameters()) * 4


def _of_rows(case: Case) -> int:
    """Of vectors, what each row has of them is kept until the backward has ended."""
    return 4 * case.num_rows * sum(one.numel() for one in case.model.parameters() if one.dim() == 1)


def test_an_exact_probe_holds_the_pieces_of_one_layer() -> None:
    case = _case()
    extra = _extra(case, GradientProbe(case.model, NUM_STREAMS))
    assert extra < 1.4 * NUM_STREAMS * _largest(case.model) + _of_rows(case)


def test_its_first_step_holds_little_more_than_that() -> None:
    case = _case()
    plain = _peak(case, None)
    probe = GradientProbe(case.model, NUM_STREAMS)
    assert _peak(case, probe) - plain < 2.5 * NUM_STREAMS * _largest(case.model)


def test_a_sketch_holds_the_pieces_of_one_layer_and_small_sums() -> None:
    case = _case()
    probe = GradientProbe(case.model, NUM_STREAMS, "sketch", sketch_size=8)
    assert _extra(case, probe) < 1.4 * NUM_STREAMS * _largest(case.model) + _of_rows(case)


def test_one_that_accumulates_exactly_holds_the_streams_gradients() -> None:
    case = _case()
    whole = sum(parameter.numel() for parameter in case.model.parameters()) * 4
    extra = _extra(case, GradientProbe(case.model, NUM_STREAMS, exact_accumulate=True))
    assert 0.9 * NUM_STREAMS * whole < extra < 1.6 * NUM_STREAMS * whole


def test_a_language_model_with_a_tied_head() -> None:
    case = build("llama-tied")
    activations = _peak(case, None)
    assert _peak(case, GradientProbe(case.model, 3)) < 2 * activations
