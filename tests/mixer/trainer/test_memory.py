from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mixer.loading.batching import MicroBatchCap, Size
from mixer.loading.loaded_step import MicroBatch
from mixer.models.side_state import Snapshot
from mixer.trainer.agreement import StepAgreement
from mixer.utils.device import is_out_of_memory


@pytest.mark.parametrize(
    ("cap", "largest", "expected"),
    [
        (MicroBatchCap(16), Size(16, 100), MicroBatchCap(8)),
        (MicroBatchCap(16), Size(5, 100), MicroBatchCap(2)),
        (MicroBatchCap(3), Size(3, 100), MicroBatchCap(1)),
        (MicroBatchCap(1), Size(1, 100), None),
        (MicroBatchCap(8, 4096), Size(4, 4000), MicroBatchCap(8, 2000)),
        (MicroBatchCap(8, 10**9), Size(4, 4000), MicroBatchCap(8, 2000)),
        (MicroBatchCap(8, 1), Size(2, 0), MicroBatchCap(8, 1)),
        (MicroBatchCap(8, 10), Size(1, 4000), None),
    ],
)
def test_a_cap_is_halved_to_what_matters(cap: MicroBatchCap, largest: Size, expected: MicroBatchCap | None) -> None:
    assert cap.halved(largest) == expected


def test_a_cap_that_was_found_is_taken_up_where_it_is_smaller() -> None:
    configured = MicroBatchCap(16, 4096)
    found = MicroBatchCap(16, 512).state_dict(configured)
    assert configured.lowered_to(found) == MicroBatchCap(16, 512)
    assert configured.lowered_to(None) == configured
    for own in (MicroBatchCap(8, 128), MicroBatchCap(16)):
        assert own.lowered_to(found) == own
    assert MicroBatchCap(32).lowered_to(MicroBatchCap(8).state_dict(MicroBatchCap(8))) == MicroBatchCap(32)


def test_the_window_closes_over_the_largest_that_went_through_after_the_first_step() -> None:
    batches = [({"x": torch.zeros(2, 7), "y": torch.zeros(2), "name": "a"}, 2), ({"x": torch.zeros(3, 4)}, 3)]
    micros = [MicroBatch(inputs, np.zeros(size, dtype=np.int64), False) for inputs, size in batches]
    assert Size.largest(micros) == Size(3, 14)
    assert Size.largest([]) == Size(0, 0)
    trainer: Any = SimpleNamespace(args=SimpleNamespace(auto_find_batch_size=True))
    agreement = StepAgreement((trainer, None, None, None), None, [], None)  # type: ignore[arg-type]
    agreement.begin_run()
    are_larger = []
    # The optimizer had no state in the first step.
    for largest in [(4, 400), (4, 400), (4, 400), (3, 10), (5, 10), (1, 401), (5, 401)]:
        agreement._largest = Size(*largest)
        are_larger.append(agreement._is_larger)
        agreement.note_trained()
    assert are_larger == [True, True, False, False, True, True, False]


def test_what_counts_as_out_of_memory() -> None:
    texts = ("CUDA out of memory. Tried to allocate 2 GiB", "DefaultCPUAllocator: can't allocate memory: 4 bytes")
    for error in (torch.OutOfMemoryError("CUDA"), torch.cuda.OutOfMemoryError("x"), *map(RuntimeError, texts)):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory."))


class _Counting(torch.nn.Module):
    """Counts rows in every way that a forward can: in place, by another tensor, and in attributes."""

    late: int

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("bound_anew", torch.zeros(2**15))
        self.tensor, self.number = torch.zeros(()), 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for counter in (self.in_place, self.tensor):
            counter += len(rows)
        self.bound_anew = self.bound_anew + len(rows)
        self.late = self.number = self.number + len(rows)
        return rows


def test_a_snapshot_brings_back_whatever_a_forward_changes() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(), _Counting())
    counter, buffers = model[2], dict(model.named_buffers())
    start, found = Snapshot(model, torch.device("cpu")), []
    for _ in range(2):
        found.append(model(torch.arange(12.0).reshape(4, 3)))
        assert counter.number == 4
        start.restore()
    assert torch.equal(*found)
    assert model[0].running_mean.tolist() == [0, 0, 0]
    assert counter.in_place == counter.tensor == counter.number == model[0].num_batches_tracked == 0
    assert not counter.bound_anew.any()
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert not hasattr(counter, "late")
